"""Gradients reduced to shards while backward runs, and parameters updated chunk by chunk as the shards come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, ShutdownError
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.gradients.reducer import GradientReducer
from byteps_like.torch.job.tracing import follow_recorder
from byteps_like.torch.sharded.arena import ShardArena
from byteps_like.torch.sharded.gradient import ShardSlot
from byteps_like.torch.sharded.update import Pair


class ShardReducer(GradientReducer):
    """See GradientReducer for parameters that come and are frozen or not, and for passes.

    A round begins with the first backward and ends with `step`. Parameters that leave `source` stay in their arena,
    unused. Arenas die with their runtime, since the other ranks' shares of the state do.
    """

    on_host_only = (
        "shares of the state are cut in this host's memory; leave shard out, or use FSDP2 (docs/how-to/c10d.md)"
    )
    _arenas: list[ShardArena]  # type: ignore[assignment]

    @property
    def arenas(self) -> list[ShardArena]:
        """In the order in which they were made."""
        return self._arenas

    def refresh(self) -> None:
        """New parameters get an arena of their own. All ranks must see the same ones. Raises ShutdownError."""
        if recorder.changed:
            follow_recorder()
        if self._runtime.closed:
            raise ShutdownError(
                "the world in which this optimizer was sharded has ended, and with it the other ranks' shares of its"
                " state; keep state_dict() before shutdown() or suspend(), and wrap a plain optimizer again"
            )
        fresh = [item for item in self._source() if item[1].requires_grad and id(item[1]) not in self._slots]
        if fresh:
            self._add(fresh)
        for _, parameter in self._source():
            if id(parameter) in self._slots:
                self._hook(parameter)

    def _make_arena(self, label: str, named: list[Named], way: Compress) -> Any:  # noqa: ARG002 - no codec here
        return ShardArena(self.route, label, named, self._options.scaling)

    @property
    def coded(self) -> list[Any]:
        """None."""
        return []

    # Rounds

    def synchronize(self) -> None:
        """Blocks until this rank's shares of all gradients are reduced, for `norm` and `scale`; `step` goes on there.

        Raises InvalidArgumentError if a gradient was put where one was sent already, MismatchError if other ranks
        cleared theirs, and the job's error.
        """
        with torch.no_grad():
            self._finish(discard=False)
            for arena in self._arenas:
                arena.wait()
                arena.land()

    def _finish(self, discard: bool) -> None:
        """Once a round: sends what is missing, and agrees with the others on what there is."""
        if self._finished:
            return
        self.refresh()
        if self._runtime.joiner is not None:
            self._runtime.joiner.check("a step of a sharded optimizer")
        for _, slot in self._slots.values():
            if isinstance(slot, ShardSlot) and slot.replaced() and not discard:
                raise InvalidArgumentError(
                    f"the gradient of {slot.name!r} was replaced after backward() had handed it to the network, so it"
                    " would be lost; clip by optimizer.clip_grad_norm_(), accumulate by backward_passes_per_step"
                )
        self._finished = True
        for arena in self._arenas:
            arena.finish(discard)

    _finished = False

    def step(self, update: Callable[[list[Pair]], None]) -> None:
        """Hands each chunk's slices to `update` when their gradients are here, and starts their gathering at once.

        Blocks until all parameters are new. Chunks are taken as they come; of several that are here, the one with
        layers nearest to the input first.
        """
        try:
            with torch.no_grad():
                self._finish(discard=False)
                for arena in self._arenas:
                    self._update(arena, update)
                for arena in self._arenas:
                    arena.wait_gathered()
        finally:
            self._reset()

    def _update(self, arena: ShardArena, update: Callable[[list[Pair]], None]) -> None:
        for _ in arena.chunks:
            _, number = arena.arrivals.get()
            arena.land_chunk(number)
            slices = arena.chunks[number].slices.items()
            update([(arena.slots[slot].parameter, piece) for slot, piece in slices])
            arena.gather(number)

    def _round(self, discard: bool) -> None:
        """Ends a round that is thrown away."""
        assert discard
        try:
            self._finish(discard=True)
            for arena in self._arenas:
                arena.wait()
        finally:
            self._reset()

    def _reset(self) -> None:
        super()._reset()
        self._finished = False

    # Over the shares of all ranks

    def norm(self, kind: float) -> float:
        """The norm of all reduced gradients as one vector, over all ranks: one all-reduce of one number. Blocks."""
        greatest = kind == float("inf")
        norms = [torch.linalg.vector_norm(grad, kind, dtype=_wide(grad)) for grad in self._gradients()]
        local = (
            torch.stack([norm.double() for norm in norms])
            if norms
            else torch.zeros(1, dtype=torch.float64, device="cpu")
        )
        total = local.max() if greatest else (local**kind).sum()
        for arena in self._arenas[:1]:
            op = Op.MAX if greatest else Op.SUM
            arena.control_lane.all_reduce(total.data_ptr(), total.data_ptr(), 1, DType.FLOAT64, op).wait()
        return float(total if greatest else total ** (1.0 / kind))

    def scale(self, factor: float) -> None:
        """Multiplies all reduced gradients."""
        for arena in self._arenas:
            for chunk in arena.chunks:
                chunk.reduced.mul_(factor)

    def _gradients(self) -> list[torch.Tensor]:
        slices = (piece for arena in self._arenas for chunk in arena.chunks for piece in chunk.slices.values())
        return [piece.grad for piece in slices if piece.grad is not None]


def _wide(grad: torch.Tensor) -> torch.dtype:
    return torch.complex128 if grad.is_complex() else torch.float64
