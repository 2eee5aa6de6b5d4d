"""LowComm: local SGD, DiLoCo and their relatives, as a context around an ordinary training loop."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.utils.hooks import RemovableHandle

from byteps_like.compression.codec import Codec
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.updates.plain import Add, Assign, NoUpdate
from byteps_like.store.updates.sgd import Nesterov, Sgd
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.low_comm.collective_rounds import CollectiveRounds
from byteps_like.torch.low_comm.fragments import Fragment, fragments_of
from byteps_like.torch.low_comm.rounds import OuterRounds, SettledChange
from byteps_like.torch.low_comm.store_rounds import StoreRounds
from byteps_like.torch.low_comm.terms import LowCommTerms, Weigh, low_comm_terms

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
        codec, feedback: contributions travel encoded, from every rank to every other; `feedback`, from 0 to 1, of what
            a codec leaves out is added to the next one. "sparseloco" is SparseLoCo: 146 times fewer bytes.

        Raises InvalidArgumentError for values out of bounds and parameters that can't be averaged, TypeError for
        arguments that nobody knows.
        """
        given = {"every": every, "fragments": fragments, "delay": delay, "mix": mix, "quorum": quorum, "grace": grace,
                 "weight": weight, "codec": codec, "feedback": feedback}  # fmt: skip
        self._terms = low_comm_terms(given, others)
        self._outer = Nesterov(lr=0.7, momentum=0.9) if outer is None else outer
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._fragments = [_Travel(one) for one in fragments_of(trained, self._terms.fragments)]
        if isinstance(self._outer, _NO_GRADIENTS):
            raise InvalidArgumentError(
                f"outer={self._outer.name} has no use for a gradient: AveragedWeights() averages weights"
            )
        if self._outer.whole:
            raise InvalidArgumentError(f"outer={self._outer.name} takes norms of single tensors: fragments have none")
        self._inner = inner
        self._rounds: OuterRounds | None = None
        self._hook: RemovableHandle | None = None
        self._steps = 0

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
        if self._rounds is None:
            self._rounds = _rounds(self._outer, self._terms, [one.fragment.read() for one in self._fragments])
            for one, value in zip(self._fragments, self._rounds.values, strict=True):
                one.fragment.mix(value, own=0.0)
        self._land(0)  # what an exception has left under way
        self._rounds.enter()
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
                if newer or one.begun is not None:
                    self._end(number, one)

    def _after_step(self, *_: object) -> None:
        self._steps += 1
        for one in self._fragments:
            one.steps += 1
        self._contribute()
        self._land(self._terms.delay)

    def _contribute(self) -> None:
        assert self._rounds is not None  # since it was entered
        for number, one in enumerate(self._fragments):
            if self._terms.pushes(number, self._steps):
                weight = self._terms.weigh(one.samples, one.steps)
                change = self._change(one.fragment, self._rounds.values[number])
                one.begin(self._steps)
                self._rounds.begin(number, change, weight)

    def _change(self, fragment: Fragment, common: torch.Tensor) -> torch.Tensor:
        own = fragment.read()
        return torch.sub(common, own, out=own)

    def _land(self, delay: int) -> None:
        for number, one in enumerate(self._fragments):
            if one.begun is not None and self._steps - one.begun >= delay:
                self._end(number, one)

    def _end(self, number: int, one: _Travel) -> None:
        assert self._rounds is not None
        one.end(self._rounds.finish(number), self._rounds.values[number], self._terms.mix)
        one.hear(self._rounds.settled(number))  # or contributions of which it isn't asked would be kept

    def _heard(self) -> list[_Travel]:
        """The fragments, with what has become of their contributions by now."""
        for number, one in enumerate(self._fragments):
            one.hear(self._rounds.settled(number) if self._rounds is not None else ())
        return self._fragments


class _Travel:
    """A fragment, and what is under way of it."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.begun: int | None = None
        """The step after which its contribution went."""
        self.version = self.staleness = self.left_out = 0
        self.contributors: tuple[int, ...] = ()
        self.samples, self.steps = 0.0, 0
        """Since the last contribution."""

    def begin(self, step: int) -> None:
        self.begun = step
        self.samples, self.steps = 0.0, 0

    def end(self, version: int, common: torch.Tensor, own: float) -> None:
        self.begun, self.version = None, version
        self.fragment.mix(common, own)

    def hear(self, settled: Sequence[SettledChange]) -> None:
        for one in settled:
            self.staleness, self.contributors = one.staleness, one.contributors
            self.left_out += not one.counted


def _rounds(outer: ValueUpdate, terms: LowCommTerms, values: list[torch.Tensor]) -> OuterRounds:
    runtime, codec = _runtime.current(), terms.lone_codec()
    name = f"low_comm.{runtime.count('low_comm')}"
    if codec is not None:
        from byteps_like.torch.low_comm.coded_rounds import CodedRounds  # needs the native core

        return CodedRounds(name, values, outer, codec, terms.feedback, runtime.worker)
    if runtime.route.name == "server":
        return StoreRounds(name, values, outer, terms.policy(runtime.worker.size), runtime.worker)
    if terms.quorum < 1:
        raise InvalidArgumentError(
            f"rank {runtime.worker.rank}: quorum={terms.quorum:g} needs servers, which don't wait for all, and this job"
            " has none; start some (byteps-like run -s 1)",
            rank=runtime.worker.rank,
            operation="LowComm",
        )
    return CollectiveRounds(name, values, outer, runtime.worker.size)
