"""Which gradients of a reducer travel by rows, beside its buckets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

import torch

from byteps_like.torch.gradients.bucket import Bucket, Departed, Place
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.reduction.sparse import SparseGradients, sparsify

LOOK_EVERY = 8
"""Rounds from one count of the rows in dense gradients to the next."""


class SparseRouter:
    """Decides between rounds, on all ranks alike, which gradients travel by rows.

    Owns the gradients that do (`gradients`) and the dense ones that are candidates. `gathers`: gradients that come
    sparse leave their buckets; else they go as dense ones, to be made sparse again with `restores`. `counts`: dense
    ones leave, too, while they touch few rows, if they are to.
    """

    def __init__(self, gradients: SparseGradients, *, gathers: bool, counts: bool, restores: bool) -> None:
        self.gathers = gathers
        self._gradients = gradients
        self._counts, self._restores = counts, restores
        self._candidates: dict[int, Named] = {}
        self._found: dict[int, Named] = {}
        """Those that have landed from a bucket, though they came sparse: they leave it after a round that waits."""

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return parameter in self._gradients

    def __len__(self) -> int:
        return len(self._gradients)

    @property
    def names(self) -> list[str]:
        """Of the gradients that travel by rows; the same on all ranks after a round."""
        return self._gradients.names()

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Whose gradients these are."""
        return self._gradients.parameters()

    # Who takes part

    def consider(self, name: str, parameter: torch.Tensor) -> None:
        """A dense gradient that is to go by rows while these are few."""
        if self._counts:
            self._candidates[id(parameter)] = (name, parameter)

    def keep(self, source: Callable[[], Iterable[Named]]) -> None:
        """Forgets all parameters but those that `source` lists."""
        if self._gradients or self._candidates or self._found:
            self._keep({id(parameter) for _, parameter in source()})

    def _keep(self, present: Container[int]) -> None:
        self._gradients.keep(present)
        self._candidates, self._found = (
            {number: item for number, item in known.items() if number in present}
            for known in (self._candidates, self._found)
        )

    def dense(self, named: Iterable[Named]) -> Iterable[Named]:
        """Those of `named` whose gradients go through buckets."""
        return [item for item in named if item[1] not in self._gradients] if self._gradients else named

    def close(self) -> None:
        """Forgets all."""
        self._keep(frozenset())

    # Rounds

    def start(self, discard: bool) -> None:
        """Sends the rows; nothing in their place if this rank throws the round away."""
        self._gradients.start(discard)

    def wait(self) -> None:
        """Blocks until all are here."""
        self._gradients.wait()

    def land(self, buckets: Sequence[Bucket]) -> None:
        """Makes the rows every `p.grad`; takes those from `buckets` that have come sparse."""
        self._gradients.land()
        for slot in [slot for bucket in buckets for slot in bucket.sparse()]:
            self.came_sparse(slot)
        for name, parameter in self._found.values():
            self._gradients.adopt(name, parameter)
        self._found = {}

    def came_sparse(self, slot: Place) -> None:
        """The gradient of `slot` has landed from a bucket, though it came sparse on some rank."""
        if self._restores or self.gathers:
            sparsify(slot.parameter)
        if self.gathers:
            self._found[id(slot.parameter)] = (slot.name, slot.parameter)

    def depart(self) -> list[Departed]:
        """Instead of `wait` and `land`: hands over the rows that are in flight, if there are any."""
        return self._gradients.depart()

    def due(self, rounds: int) -> bool:
        """Whether gradients may change between rows and buckets after the round under way, before which there were so
        many; the same on all ranks. It has to land, then."""
        if self._found or self._gradients.about_to_leave:
            return True
        return rounds % LOOK_EVERY == 0 and any(item not in self._gradients for _, item in self._candidates.values())

    def reroute(self, rounds: int) -> None:
        """After so many rounds: to rows where these have become few, and back. Looks now and then."""
        if not self._candidates:
            return
        self._gradients.leave()
        for name, parameter in self._candidates.values() if rounds % LOOK_EVERY == 0 else ():
            if parameter not in self._gradients:
                self._gradients.take(name, parameter)

    def recut(self, partition_bytes: int) -> None:
        """Those that go through servers, in partitions of that size; 0: of the job's."""
        self._gradients.partition_bytes = partition_bytes
