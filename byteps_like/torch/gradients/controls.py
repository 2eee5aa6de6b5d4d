"""The control elements at the tail of an arena, which are reduced with its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteps_like.errors import MismatchError
from byteps_like.worker.layout import CONTROLS, FLAGS

THREW_AWAY = (
    "threw their gradients away after backward() (they cleared them, or raised InvalidArgumentError for a gradient that"
    " was changed in flight) while others went on to step() or synchronize(); all ranks must make the same calls in the"
    " same order"
)
"""What the other ranks are told of those that did."""


class Controls:
    """Those of `count` gradients, the first elements of `tail`: one per gradient that says "this rank had one", one per
    gradient "it was sparse", one "this rank throws the round away", one "this rank takes part", which ranks that have
    joined do not. Sums or averages of them, once the round has landed."""

    def __init__(self, tail: torch.Tensor, count: int) -> None:
        self._count = count
        self._elements = tail[: FLAGS * count + CONTROLS]

    def fill(self, present: Sequence[bool], sparse: Sequence[bool], discard: bool) -> None:
        """What this rank has to say: of each gradient whether it has one, and whether that was sparse."""
        flags = bytearray((*present, *sparse, discard, True))  # a tensor of a list would take as long as a gradient
        self._elements.copy_(torch.frombuffer(flags, dtype=torch.uint8))

    def present(self) -> list[bool]:
        """Of each gradient, whether any rank had one."""
        return [flag > 0.0 for flag in self._elements[: self._count].tolist()]

    def sparse(self) -> list[int]:
        """Numbers of those that were sparse on any rank."""
        flags = self._elements[self._count : FLAGS * self._count]
        return [int(number) for number in flags.nonzero().flatten().tolist()]

    @property
    def discarded(self) -> bool:
        """Whether any rank threw the round away."""
        return bool(self._elements[-CONTROLS] > 0.0)

    def check(self, average: bool, size: int, rank: int, label: str) -> bool:
        """Whether all `size` ranks took part. Raises MismatchError if some threw the round away and others did not."""
        discarding, taking_part = self._elements[-CONTROLS:].tolist()
        one = 1.0 / size if average else 1.0
        if 0.0 < discarding < taking_part - one / 2:
            raise MismatchError(
                f"some ranks {THREW_AWAY}",
                rank=rank,
                key=label,
            )
        return bool(taking_part > one * size - one / 2)
