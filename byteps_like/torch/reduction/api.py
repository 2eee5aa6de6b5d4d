"""What optimizers ask of whoever reduces their gradients, whole or by shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from byteps_like.torch.gradients.bucket import Departed, Place
from byteps_like.torch.job.routes import Route
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.reduction.codec_memory import CodecMemory
from byteps_like.torch.reduction.round_hooks import Watchers
from byteps_like.worker.api import Links


class Reducer(Protocol):
    """GradientReducer, and ShardReducer. A round begins with the first backward."""

    passes_per_step: int
    """The backward pass of a round that makes a gradient ready."""
    label: str
    route: Route
    codecs: CodecMemory
    watchers: Watchers
    """What looks at its rounds and changes how gradients travel."""

    @property
    def active(self) -> bool:
        """Whether a round is under way: at least one gradient was made ready."""

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any parameter since the last round."""

    def refresh(self) -> None:
        """Looks at the parameters again. All ranks must see the same ones."""

    def synchronize(self) -> None:
        """Blocks until this rank's part of all gradients is reduced."""

    def restart(self) -> None:
        """Before gradients are cleared: ends a round under way, forgets passes that were counted."""

    def close(self) -> None:
        """Removes the hooks and forgets the buckets; gradients stay where they are. Idempotent."""


class Adaptable(Reducer, Protocol):
    """A reducer whose rounds are looked at, and whose way of sending changes between them (see adapt)."""

    @property
    def runtime(self) -> Runtime:
        """The membership that it reduces by."""

    @property
    def free(self) -> bool:
        """Whether nobody has said which way gradients go."""

    @property
    def partition_bytes(self) -> int:
        """Of its buckets."""

    @property
    def complete(self) -> bool:
        """Whether all ranks took part in the round that has landed: none has joined."""

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Of Links, which it may be told to take; "": by size."""

    def use(self, route: Route, links: Links) -> None:
        """From the next round on messages by `route` are sent so."""

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds, on all ranks alike: goes by `route` from now on, in partitions of so many bytes (0: of the
        job's size)."""


class Departing(Reducer, Protocol):
    """A reducer whose rounds may end without waiting (see crossing)."""

    on_gradient: Callable[[torch.Tensor], None] | None
    """Told of each new gradient, before anything is done with it."""

    def depart(self) -> list[Departed] | None:
        """Ends the round; what is in flight is the caller's to wait for. None, and nothing has been done, if this round
        has to be waited for."""

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read: before the next comes. Idempotent."""

    def note(self, flight: object) -> None:
        """`flight` (a Flight) is to be finished before this process leaves the job."""

    def came_sparse(self, place: Place) -> None:
        """A gradient has landed as a dense one, though it came sparse on some rank. May change its `p.grad`."""
