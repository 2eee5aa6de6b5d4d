"""Which gradients of a reducer travel by rows, beside its buckets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

import torch

from byteps_like.torch.gradients.bucket import Bucket
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.reduction.sparse import SparseGradients

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
        if self._gradients or self._candidates:
            self._keep({id(parameter) for _, parameter in source()})

    def _keep(self, present: Container[int]) -> None:
        self._gradients.keep(present)
        self._candidates = {number: item for number, item in self._candidates.items() if number in present}

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
        for slot in [slot for bucket in buckets for slot in bucket.sparse()] if self._restores or self.gathers else ():
            if self._restores:
                slot.sparsify()
            else:
                self._gradients.adopt(slot.name, slot.parameter)

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
