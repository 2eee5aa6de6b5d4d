"""Which gradients of a reducer travel by rows, beside its buckets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import torch

from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.gradients.bucket import Departed, Place
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job.routes import Route
from byteps_like.torch.reduction.beside import LOOK_EVERY
from byteps_like.torch.reduction.sparse import SparseGradients, sparsify


class SparseRouter:
    """Decides between rounds, on all ranks alike, which gradients travel by rows. See Beside.

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
        """See Beside."""
        return self._gradients.parameters()

    # Who takes part

    def consider(self, name: str, parameter: torch.Tensor, way: Compress) -> None:
        """A dense gradient, maybe one that is to go by rows while these are few."""
        if self._counts and way.by_rows:
            self._candidates[id(parameter)] = (name, parameter)

    def keep(self, source: Callable[[], Iterable[Named]]) -> None:
        """See Beside."""
        if self._gradients or self._candidates or self._found:
            self._keep({id(parameter) for _, parameter in source()})

    def _keep(self, present: Container[int]) -> None:
        self._gradients.keep(present)
        self._candidates, self._found = (
            {number: item for number, item in known.items() if number in present}
            for known in (self._candidates, self._found)
        )

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Those that go through servers, in partitions of that size; 0: of the job's."""
        del route
        self._gradients.partition_bytes = partition_bytes

    def close(self) -> None:
        """See Beside."""
        self._keep(frozenset())

    # A round

    sent = ()
    """None before the end of a round."""

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Nothing: rows are found at the end of the round."""

    def start(self, discard: bool) -> None:
        """Sends the rows; nothing in their place if this rank throws the round away."""
        self._gradients.start(discard)

    def wait(self) -> None:
        """See Beside."""
        self._gradients.wait()

    def check_agreed(self) -> None:
        """Nothing: the buckets of the round tell."""

    def land(self) -> None:
        """Makes the rows every `p.grad`; takes those from their buckets that have come sparse."""
        self._gradients.land()
        for name, parameter in self._found.values():
            self._gradients.adopt(name, parameter)
        self._found = {}

    def came_sparse(self, slot: Place) -> None:
        """The gradient of `slot` has landed from a bucket, though it came sparse on some rank."""
        if self._restores or self.gathers:
            sparsify(slot.parameter)
        if self.gathers:
            self._found[id(slot.parameter)] = (slot.name, slot.parameter)

    def reset(self) -> None:
        """See Beside."""

    def depart(self) -> list[Departed]:
        """See Beside."""
        return self._gradients.depart()

    def landed(self) -> None:
        """See Beside."""

    # Between rounds

    def due(self, rounds: int) -> bool:
        """See Beside."""
        if self._found or self._gradients.about_to_leave:
            return True
        return rounds % LOOK_EVERY == 0 and any(item not in self._gradients for _, item in self._candidates.values())

    def reroute(self, rounds: int) -> None:
        """To rows where these have become few, and back. Looks now and then."""
        if not self._candidates:
            return
        self._gradients.leave()
        for name, parameter in self._candidates.values() if rounds % LOOK_EVERY == 0 else ():
            if parameter not in self._gradients:
                self._gradients.take(name, parameter)
