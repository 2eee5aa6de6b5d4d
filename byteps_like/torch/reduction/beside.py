"""Gradients beside a reducer's buckets, as the reducer sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job.routes import Route

LOOK_EVERY = 8
"""Rounds from one look at the gradients in buckets, whether they had better leave these, to the next."""


class Accumulated(Protocol):
    """A gradient that becomes ready when backward has come to it so many times: a Slot, or one that has left its
    bucket."""

    name: str
    passes: int

    @property
    def ready(self) -> bool:
        """Whether it was sent in this round."""

    def count(self) -> None:
        """A backward pass has made it, or added to it."""

    def cleared(self) -> bool:
        """Whether the user has cleared it since the last pass."""

    def changed(self) -> bool:
        """Whether the user has changed it since it was sent."""


class Beside(Protocol):
    """Gradients that have left their buckets, and travel in another way in the same rounds: by rows, or as factors.

    Which ones do is decided between rounds, on all ranks alike. One round takes them from `start` over `wait` and
    `check_agreed` to `land`. Not thread-safe: it belongs to the thread that runs backward.
    """

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether its gradient has left."""

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """Whose gradients have left."""

    # Who takes part

    def consider(self, name: str, parameter: torch.Tensor, way: Compress) -> None:
        """A gradient goes into a bucket, to travel that `way`: it may leave it later."""

    def keep(self, source: Callable[[], Iterable[Named]]) -> None:
        """Forgets all parameters but those that `source` lists."""

    def recut(self, route: Route, partition_bytes: int) -> None:
        """See Bucket.recut."""

    def close(self) -> None:
        """Forgets all. Idempotent."""

    # A round

    @property
    def sent(self) -> Sequence[Accumulated]:
        """Those of its gradients that were sent in the round under way, before its end."""

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Backward has made, or added to, the `p.grad` of one that has left."""

    def start(self, discard: bool) -> None:
        """Sends what was not sent yet. `discard`: this rank throws the round away."""

    def wait(self) -> None:
        """Blocks until all that was sent has landed. Raises the first error, after waiting for all."""

    def check_agreed(self) -> None:
        """Raises MismatchError if some ranks threw the round away and others did not."""

    def land(self) -> None:
        """Makes what has landed every `p.grad`; one that no rank has stays None."""

    def reset(self) -> None:
        """A new round begins; the one before has landed, or has departed."""

    def depart(self) -> list[Departed]:
        """Instead of `wait` and `land`: hands over what is in flight, if anything is."""

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read."""

    # Between rounds, on all ranks alike

    def due(self, rounds: int) -> bool:
        """Whether gradients may leave or return after the round under way, before which there were so many. It has to
        land, then."""

    def reroute(self, rounds: int) -> None:
        """After a round, before which there were so many: decides who leaves and who returns."""
