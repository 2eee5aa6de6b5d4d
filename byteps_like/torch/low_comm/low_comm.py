"""LowComm: local SGD, DiLoCo and their relatives, as a context around an ordinary training loop."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.utils.hooks import RemovableHandle

from byteps_like.compression.codec import Codec
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.saving.carrying import hand_over
from byteps_like.store.saving.checkpoint import Taken, leave, restore, save, take
from byteps_like.store.saving.manifest import Manifest
from byteps_like.store.saving.memory import gather, scatter
from byteps_like.store.saving.saved import SavedContent
from byteps_like.store.updates.plain import Add, Assign, NoUpdate
from byteps_like.store.updates.sgd import Nesterov, Sgd
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.store.upper.upper import Upper
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.trees import packed, unpacked
from byteps_like.torch.low_comm.collective_rounds import CollectiveRounds
from byteps_like.torch.low_comm.fragments import Fragment, fragments_of
from byteps_like.torch.low_comm.position import Position, check_position
from byteps_like.torch.low_comm.rounds import OuterRounds
from byteps_like.torch.low_comm.store_rounds import StoreRounds
from byteps_like.torch.low_comm.terms import LowCommTerms, Weigh, low_comm_terms
from byteps_like.torch.low_comm.travel import Travel
from byteps_like.torch.ops.objects import allgather_object, broadcast_object

_NO_GRADIENTS = (NoUpdate, Assign, Add)
"""Updates that don't subtract what they are given."""


def AveragedWeights() -> ValueUpdate:
    """The outer optimizer of local SGD: the common weights become the mean of the ranks' that contribute."""
    return Sgd(lr=1.0)


class LowComm:
    """Ranks train by themselves; every so many steps of the inner optimizer their weights become common.

        with bps.LowComm(model, optimizer, every=30):
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss(model(inputs), targets).backward()
                optimizer.step()

    Each rank contributes how far its weights have come since they were common; servers (or, without any, all ranks
    alike) give the mean to the outer optimizer as its gradient. McMahan et al., "Communication-efficient learning of
    deep networks from decentralized data", AISTATS 2017; Stich, "Local SGD converges fast and communicates little",
    ICLR 2019; Douillard et al., "DiLoCo", 2023, and "Streaming DiLoCo with overlapping communication", 2025.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inner: torch.optim.Optimizer,
        *,
        outer: ValueUpdate | None = None,
        every: int = 30,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
        quorum: float = 1.0,
        grace: float | Literal["auto"] = 0.0,
        weight: str | Weigh = "one",
        codec: str | Codec = "",
        feedback: float = 0.95,
        upper: Upper | None = None,
        on_loss: str | None = None,
        **others: Any,
    ) -> None:
        """All ranks make it, with the same arguments.

        model, inner: its trainable parameters, and what changes them; ordinary ones.
        outer: what is done to the common weights with the mean change: an update of the store. None takes
            Nesterov(lr=0.7, momentum=0.9), as DiLoCo; AveragedWeights() is local SGD.
        every: steps of `inner` between two contributions of the same weights. Also H, sync_every, sync_steps.
        fragments: the model goes in so many parts of equal size, one after the other, at even distances.
        delay: steps that are made meanwhile, until the common weights land. Also fragment_sync_delay.
        mix: where they land, how much stays of the rank's own weights. Also fragment_update_alpha.
        quorum: part of the ranks that is waited for, and `grace`, how many seconds longer, or "auto": as long as one
            more contribution makes them more per second. Whoever is late counts in the next version. Needs servers.
        weight: what contributions count: "one", "samples", "tokens" or "tokens**2/steps", of what `count` was told
            since the last, or a function of both numbers.
        codec, feedback: contributions travel encoded; `feedback`, from 0 to 1, of what a codec leaves out is added to
            the next one. "sparseloco" is SparseLoCo: 146 times fewer bytes. They go from every rank to every other, but
            with a quorum, `upper` or `on_loss` to servers, and the common weights come back as they are.
        upper: a group of servers above this job's and those of other sites (docs/how-to/sites.md), as in HALoS.
        on_loss: "raise", or "finish", which needs servers: when a rank dies the others go on. None: as all of the job.

        Raises InvalidArgumentError for values out of bounds and parameters that can't be averaged, TypeError for
        arguments that nobody knows.
        """
        given = {"every": every, "fragments": fragments, "delay": delay, "mix": mix, "quorum": quorum, "grace": grace,
                 "weight": weight, "codec": codec, "feedback": feedback, "upper": upper,
                 "on_loss": on_loss}  # fmt: skip
        self._terms = low_comm_terms(given, others)
        self._outer = Nesterov(lr=0.7, momentum=0.9) if outer is None else outer
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._fragments = [Travel(one) for one in fragments_of(trained, self._terms.fragments)]
        if isinstance(self._outer, _NO_GRADIENTS):
            raise InvalidArgumentError(
                f"outer={self._outer.name} has no use for a gradient: AveragedWeights() averages weights"
            )
        if self._outer.whole:
            raise InvalidArgumentError(f"outer={self._outer.name} takes norms of single tensors: fragments have none")
        self._inner = inner
        self._rounds: OuterRounds | None = None
        self._hook: RemovableHandle | None = None
        self._carried = b""
        self.steps = 0
        """Of the inner optimizer, that were made within `with` blocks."""

    @property
    def version(self) -> int:
        """How often the common weights were updated that landed last: the fewest of all fragments'."""
        return min(one.version for one in self._fragments)

    @property
    def staleness(self) -> int:
        """Of the last contributions that are part of a version, the oldest: versions that were made since the weights
        that it began with."""
        return max(one.staleness for one in self._heard())

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks whose contributions are in the version that this rank's last one is part of, ascending; of all
        fragments, those that are in each. None before the first."""
        return tuple(sorted(frozenset.intersection(*(frozenset(one.contributors) for one in self._heard()))))

    @property
    def left_out(self) -> int:
        """How many contributions were not applied, because they were not finite."""
        return sum(one.left_out for one in self._heard())

    def count(self, samples: float) -> None:
        """Says how many samples or tokens the step under way takes; see `weight`."""
        for one in self._fragments:
            one.samples += samples

    def __enter__(self) -> Self:
        """From here on steps of the inner optimizer count. Blocks until all ranks have come, the first time until they
        have rank 0's weights; later only with a quorum. Raises the job's error."""
        if self._hook is not None:
            raise InvalidArgumentError("this LowComm is in use: leave its with block first")
        rounds = self._opened()
        for number, one in enumerate(self._fragments):
            if one.begun is not None and one.arrived is None:  # an exception has left it
                self._end(number, one)
        rounds.enter()
        self._hook = self._inner.register_step_post_hook(self._after_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Weights that are under way land. What was trained since the last contribution stays this rank's own. With a
        quorum it blocks until all ranks have come here, so that every contribution counts, and all end with the common
        weights."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if kind is None and self._rounds is not None:
            newer = self._rounds.leave()
            for number, one in enumerate(self._fragments):
                if newer:
                    one.arrived = None
                if newer or one.begun is not None:
                    self._end(number, one)

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Writes all that training goes on from to a directory, which all ranks reach by this path; the version. That
        is the common weights and the outer optimizer's state, and of each rank its own weights, its position between
        two contributions, what a codec has left out, and the inner optimizer's `state_dict()`.

        All ranks call it between two steps, within the `with` block or outside of it. Waits first for the common
        weights that are under way; they land when they are due. Blocks until it is whole on the disk; a checkpoint
        that is there already stays as it is until then. Raises as Store.checkpoint.
        """
        rounds = self._arrived()
        with rounds.saved() as saved:
            return save(saved, Path(path), lambda: packed(self._position(rounds)))

    def taken(self) -> Taken:
        """This rank's share of a checkpoint, in its memory. All ranks call it between two steps. See Store.taken."""
        rounds = self._arrived()
        with rounds.saved() as saved:
            return take(saved, lambda: packed(self._position(rounds)))

    def leave(self, leaving: Iterable[int] = ()) -> Taken:
        """What of the common weights goes on in the next world. All ranks call it between two steps. See
        Store.leave."""
        with self._arrived().saved() as saved:
            return leave(saved, leaving)

    def reopen(self) -> None:
        """In the next world of an elastic job: keeps what is this rank's own, until `take_over` or `restore`. Doesn't
        block. All ranks that had it call it, and others make it. Raises InvalidArgumentError with an upper group."""
        if self._terms.upper is not None:
            raise InvalidArgumentError("this LowComm has an upper group, so it is of one world: restore a cut")
        if self._rounds is not None:
            self._carried = b"".join(packed(self._position(self._rounds)))
        for one in self._fragments:
            one.give_up()
        self._rounds = None

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """Goes on with the common weights of the world before (see Store.take_over), and with the rank's own. All ranks
        call it; one that was not there takes rank 0's place, with the common weights."""
        rounds = self._opened()
        with rounds.saved() as saved:
            hand_over(saved, manifest, contents)
        own = self._carried
        first = b"" if all(allgather_object(bool(own))) else broadcast_object(own, root_rank=0)
        self._take(rounds, unpacked(memoryview(own or first)), is_own=bool(own))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes on from a checkpoint, from any number of ranks and servers, or none: with the common weights, the rank's
        own and the inner optimizer's state in place. All ranks call it between two steps. A rank whose number there
        was not takes rank 0's place, with the common weights.

        Raises MismatchError (with both texts) where the checkpoint has other fragments, another outer or inner
        optimizer or codec, CorruptError naming the file where something of it is missing, cut off or damaged: nothing
        is changed on any rank or server then.
        """
        rounds = self._arrived()
        own, found = self._position(rounds), Position()

        def take(_: int, data: memoryview) -> None:
            found.update(unpacked(data))
            check_position(found, own)

        with rounds.saved() as saved:
            restore(saved, Path(path), take)
        self._take(rounds, found, is_own=found["rank"] == own["rank"])

    def state_dict(self) -> dict[str, Any]:
        """What `checkpoint` writes, in this rank's memory: "common" is the same on all ranks, "own" each rank's. All
        ranks call it. Raises as `checkpoint`."""
        rounds = self._arrived()
        with rounds.saved() as saved:
            return {"common": gather(saved), "own": deepcopy(self._position(rounds))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` has given on this rank. All ranks call it with the same "common"; a rank that
        was not there takes another's place by that one's "own". See `restore`."""
        rounds = self._arrived()
        own, found = self._position(rounds), deepcopy(state.get("own", {}))
        with rounds.saved() as saved:
            scatter(saved, state.get("common", {}), lambda: check_position(found, own))
        self._take(rounds, found, is_own=found["rank"] == own["rank"])

    def _opened(self) -> OuterRounds:
        """Blocks, the first time, until the weights are rank 0's."""
        if self._rounds is None:
            self._rounds = _rounds(self._outer, self._terms, [one.fragment.read() for one in self._fragments])
            for one, value in zip(self._fragments, self._rounds.values, strict=True):
                one.fragment.mix(value, own=0.0)
        return self._rounds

    def _arrived(self) -> OuterRounds:
        """Blocks until nothing is under way any more."""
        rounds = self._opened()
        for number, one in enumerate(self._fragments):
            if one.begun is not None and one.arrived is None:
                one.arrived = rounds.finish(number)
                one.hear(rounds.settled(number))
        return rounds

    def _position(self, rounds: OuterRounds) -> Position:
        inner = {"kind": type(self._inner).__qualname__, "state": self._inner.state_dict()}
        fragments = [one.state() for one in self._fragments]
        rank = _runtime.current().worker.rank
        return {"rank": rank, "steps": self.steps, "fragments": fragments, "inner": inner, "rounds": rounds.own()}

    def _take(self, rounds: OuterRounds, found: Position, *, is_own: bool) -> None:
        self._carried = b""
        rounds.restored()
        rounds.take_own(found["rounds"], is_own=is_own)
        for one, state, common in zip(self._fragments, found["fragments"], rounds.values, strict=True):
            if is_own:
                one.take(state)
            else:
                one.take_place(state, common)
        self.steps = found["steps"]
        self._inner.load_state_dict(found["inner"]["state"])

    def _after_step(self, *_: object) -> None:
        self.steps += 1
        for one in self._fragments:
            one.steps += 1
        self._contribute()
        self._land(self._terms.delay)

    def _contribute(self) -> None:
        assert self._rounds is not None  # since it was entered
        for number, one in enumerate(self._fragments):
            if self._terms.pushes(number, self.steps):
                weight = self._terms.weigh(one.samples, one.steps)
                change = self._change(one.fragment, self._rounds.values[number])
                one.begin(self.steps)
                self._rounds.begin(number, change, weight)

    def _change(self, fragment: Fragment, common: torch.Tensor) -> torch.Tensor:
        own = fragment.read()
        return torch.sub(common, own, out=own)

    def _land(self, delay: int) -> None:
        for number, one in enumerate(self._fragments):
            if one.begun is not None and self.steps - one.begun >= delay:
                self._end(number, one)

    def _end(self, number: int, one: Travel) -> None:
        assert self._rounds is not None
        version = self._rounds.finish(number) if one.arrived is None else one.arrived
        one.land(version, self._rounds.values[number], self._terms.mix)
        one.hear(self._rounds.settled(number))  # or contributions of which it isn't asked would be kept

    def _heard(self) -> list[Travel]:
        """The fragments, with what has become of their contributions by now."""
        for number, one in enumerate(self._fragments):
            one.hear(self._rounds.settled(number) if self._rounds is not None else ())
        return self._fragments


def _rounds(outer: ValueUpdate, terms: LowCommTerms, values: list[torch.Tensor]) -> OuterRounds:
    runtime, codec = _runtime.current(), terms.lone_codec()
    name = f"low_comm.{runtime.count('low_comm')}"
    if codec is not None:
        from byteps_like.torch.low_comm.coded_rounds import CodedRounds  # needs the native core

        return CodedRounds(name, values, outer, codec, terms.feedback, runtime.worker)
    if runtime.route.name == "server":
        return StoreRounds(name, values, outer, terms, runtime.worker)
    if wish := terms.needs_servers:
        raise InvalidArgumentError(
            f"rank {runtime.worker.rank}: {wish}, and this job has none; start some (byteps-like run -s 1)",
            rank=runtime.worker.rank,
            operation="LowComm",
        )
    return CollectiveRounds(name, values, outer, runtime.worker)
