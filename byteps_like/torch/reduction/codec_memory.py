"""The codecs of a reducer's buckets: which are in force, and what they remember between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from byteps_like.torch.gradients.bucket import Coded
from byteps_like.torch.gradients.coding import RESIDUAL, Memory
from byteps_like.torch.gradients.rescaling import Rates, Rescaling
from byteps_like.torch.reduction.parameter_set import level


class CodecMemory:
    """Which codecs are in force in `buckets`, and what they remember. Changes are made between rounds, on all ranks
    alike.

    Owns the number of rounds (by which codecs of a warm-up change), whether codecs are left out for now, the learning
    rates by which residuals are rescaled, and what was remembered of parameters whose buckets were given up. `buckets`
    is the reducer's own list, which changes. `asked`: whether codecs were asked for that can be left out; None: there
    may be none that can.
    """

    def __init__(self, buckets: Sequence[Coded], asked: bool | None) -> None:
        self.rounds = 0
        """How many all ranks took part in: ranks that have joined don't count them, nor do the others then."""
        self.selects = False
        """Whether some gradients are encoded because compression="auto" has found that to be faster."""
        self.used = False
        """Whether a codec was ever to remember anything: of gradients that may have left their buckets since."""
        self._buckets = buckets
        self._asked = asked
        self._on = True
        self._rescaling = Rescaling()
        self._left: dict[str, Memory] = {}

    @property
    def buckets(self) -> list[Coded]:
        """Those whose gradients are encoded, at some time or always."""
        return [bucket for bucket in self._buckets if bucket.remembers]

    @property
    def may_encode(self) -> bool:
        """Whether some gradients have, or may get, a codec that can be left out."""
        return self._asked is not None and (self._asked or bool(self.buckets))

    @property
    def switchable(self) -> bool:
        """Whether some have it now. PowerSGD is none."""
        return self.may_encode and any(bucket.windows for bucket in self._buckets)

    @property
    def names(self) -> list[str]:
        """Of the codecs, in canonical form; without PowerSGD."""
        return sorted({bucket.coding.way.name for bucket in self.buckets if bucket.coding is not None})

    def take_rates(self, rates: Rates) -> None:
        """From now on residuals are rescaled when learning rates change."""
        self._rescaling.rates = rates

    def begin(self, bucket: Coded) -> None:
        """A new bucket goes on where others have left its parameters."""
        self.used = self.used or bucket.remembers
        bucket.rescaling = self._rescaling
        bucket.remember(self._left)
        bucket.recode(self.rounds)
        bucket.switch(self._on, self.rounds)

    def leave(self) -> None:
        """Keeps what is remembered: the buckets are about to be given up."""
        self._left.update(self.recall())

    def restart(self) -> None:
        """In another world: all codecs are in force again."""
        self._on, self.selects = True, False

    def switch(self, on: bool) -> None:
        """Whether gradients that have a codec are encoded."""
        self._on = on
        for bucket in self._buckets:
            bucket.switch(on, self.rounds)
        level(self._buckets)

    @property
    def due(self) -> bool:
        """Whether another codec is due after the round under way, which must end with nothing in flight then."""
        return any(
            bucket.coding is not None and bucket.coding.text(self.rounds + 1) != bucket.codec for bucket in self.buckets
        )

    def recode(self, rounds: int) -> None:
        """The codecs that are due after so many rounds."""
        self.rounds = rounds
        for bucket in self.buckets:
            bucket.recode(rounds)
        level(self._buckets)

    def owed(self, name: str, parameter: torch.Tensor) -> torch.Tensor | None:
        """What a codec has left out of a gradient that has left its bucket, a copy, as fp32. Scaled as what is sent is
        (Scaling.terms), and in terms of the learning rate that it is updated with."""
        owed = self._left.get(name, {}).get(RESIDUAL)
        return owed if owed is None else owed * self._rescaling.factor(name, parameter)

    def paid(self, name: str) -> None:
        """What was owed has landed. It stays owed by a round that fails, or that a rank throws away; in a bucket such a
        round clears it, since there it has become one with the gradients that were thrown away."""
        self._left.get(name, {}).pop(RESIDUAL, None)

    def recall(self) -> dict[str, Memory]:
        """Copies of what codecs remember of each gradient, by the parameters' names. With no round under way."""
        in_buckets = {name: memory for bucket in self.buckets for name, memory in bucket.recall().items()}
        return {**_copies(self._left), **in_buckets}

    @property
    def last_rates(self) -> dict[str, float]:
        """The learning rates that residuals are in terms of, by the parameters' names."""
        return dict(self._rescaling.last)

    def remember(self, memories: Mapping[str, Memory], rates: Mapping[str, float]) -> None:
        """Begins anew with `memories`, of parameters by name, in terms of the learning `rates`. With no round under
        way."""
        self._left, self._rescaling.last = _copies(memories), dict(rates)
        for bucket in self.buckets:
            bucket.forget()
            bucket.remember(memories)


def _copies(memories: Mapping[str, Memory]) -> dict[str, Memory]:
    found = {name: {kind: value.clone() for kind, value in memory.items()} for name, memory in memories.items()}
    return {name: memory for name, memory in found.items() if memory}
