"""A bucket: gradients that travel together, whatever they are made of on their way, as a reducer sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from byteps_like.torch.gradients.coding import ArenaCoding, Memory
from byteps_like.torch.gradients.rescaling import Rescaling
from byteps_like.torch.gradients.sent import SentRange
from byteps_like.torch.gradients.slot import Slot
from byteps_like.torch.job.routes import Route


class Coded(Protocol):
    """Gradients that travel together, encoded or not, whoever they land at."""

    label: str
    longest: int
    """Partitions of the longest bucket beside this one: the last ones of all are equally urgent."""
    rescaling: Rescaling
    """By which learning rates what error feedback keeps is rescaled. Its reducer's, from when it has one."""

    @property
    def slots(self) -> Sequence[Slot]:
        """Its gradients, in the order of their numbers."""

    @property
    def partitions(self) -> int:
        """How many there are."""

    def reached(self, slot: Any) -> None:
        """Backward has come to the layer of `slot`. The gradient may follow later."""

    def abandon(self) -> None:
        """Forgets the bucket, whose names are not used again, once what is in flight has landed."""

    # Between rounds, on all ranks alike

    def recode(self, rounds: int) -> None:
        """The codec that is due after so many rounds, if it is another."""

    def switch(self, coded: bool, rounds: int) -> None:
        """Whether its gradients are encoded, if it has a codec that can be left out."""

    # What its codec remembers, with no round under way

    @property
    def remembers(self) -> bool:
        """Whether its gradients are encoded, at some time or always."""

    @property
    def coding(self) -> ArenaCoding | None:
        """Its codec; None: it has none of the registry."""

    @property
    def windows(self) -> Sequence[range]:
        """Elements of each partition that is encoded by that."""

    @property
    def codec(self) -> str:
        """By which its gradients are encoded in the next round, as TensorSpec has it; "" if they aren't."""

    @property
    def is_coded(self) -> bool:
        """Whether they are."""

    def recall(self) -> dict[str, Memory]:
        """Copies of what is remembered, by the parameters' names."""

    def remember(self, memories: Mapping[str, Memory]) -> None:
        """Takes what is there for its parameters; the rest is left alone."""

    def forget(self) -> None:
        """As at the beginning."""


class Bucket(Coded, Protocol):
    """Gradients that are sent, and land, together. One round takes it from `ready` over `finish` and `wait` to `land`.

    All ranks must call `finish` equally often. Not thread-safe: it belongs to the thread that runs backward.
    """

    @property
    def complete(self) -> bool:
        """Whether all ranks took part in the round that has landed; the same on all that did."""

    @property
    def settled(self) -> bool:
        """Whether its layout is final, so that a round may `depart`."""

    # A round

    def ready(self, slot: Slot) -> None:
        """The gradient of `slot`, one of its own, is complete on this rank: sends what was waiting for it only."""

    def finish(self, discard: bool) -> None:
        """Sends what was not sent yet. `discard`: this rank throws the round away."""

    def wait(self) -> None:
        """Blocks until all that was sent has landed. Raises the first error, after waiting for all."""

    def check_agreed(self) -> None:
        """Raises MismatchError if some ranks threw the round away and others did not."""

    def land(self) -> None:
        """Hands the landed gradients to their parameters."""

    def settle(self) -> None:
        """After the first round that has landed: lays the gradients out in the order in which they became ready."""

    def sparse(self) -> list[Slot]:
        """Those whose gradients were sparse on any rank; the same on all ranks. For a round that has landed."""

    def reset(self) -> None:
        """A new round begins; the one before has landed, or has departed."""

    def depart(self) -> Departed:
        """Instead of `wait`, for a round that is `finish`ed: hands over what is in flight. Only if `settled`."""

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read. Idempotent."""

    # Between rounds, on all ranks alike

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Goes by `route` from now on, in partitions of `partition_bytes` (0: of the job's size). Blocks."""


class Place(Protocol):
    """Where one gradient lies among those that land together: a Slot, or a SparseSlot."""

    @property
    def name(self) -> str:
        """Of the parameter, for messages."""

    @property
    def parameter(self) -> torch.Tensor:
        """Whose gradient it is."""

    @property
    def index(self) -> int:
        """Its number among them."""

    @property
    def parts(self) -> range:
        """The partitions that it is complete with."""


class Landing(Protocol):
    """Gradients that are handed over one by one, each when the partitions that it lies in have landed."""

    @property
    def slots(self) -> Sequence[Place]:
        """Its gradients, in the order of their numbers."""

    @property
    def data(self) -> object:
        """The memory that must stay while anything is in flight."""

    @property
    def commits(self) -> range:
        """The partitions by which it is known that no rank threw the round away. None: those that departed with it
        tell."""

    def priority(self, run: range) -> int:
        """Of partitions that are sent together; greater is more urgent."""

    def check_agreed(self) -> None:
        """See Bucket."""

    def present(self) -> list[bool]:
        """Of each slot, whether any rank may have had a gradient. For a round whose `commits` have landed."""

    def sparse(self) -> Sequence[Place]:
        """Those that land as dense gradients though they came sparse on some rank; the same on all ranks. For a round
        whose `commits` have landed."""

    def land_one(self, slot: Any, present: bool) -> None:
        """Hands the landed gradient of `slot`, one of its own, to the parameter; `present` as told by `present()`."""


@dataclass(frozen=True)
class Departed:
    """Gradients of a round that are in flight together, for others to wait for."""

    bucket: Landing
    flown: list[SentRange]
