"""What a Store or a KV has of the upper group: on rank 0 what exchanges values with it, on all ranks what to ask of
that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

import numpy as np

from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, PeerLostError
from byteps_like.store.policies.unlocked import Hogwild
from byteps_like.store.saving.saved import Saved
from byteps_like.store.terms import StoreTerms
from byteps_like.store.updates.plain import NoUpdate
from byteps_like.store.upper.progress import Exchange
from byteps_like.store.upper.relay import SiteRelay, VersionsNow
from byteps_like.store.upper.upper import Upper
from byteps_like.worker.api import TensorSpec, Worker

LEADER = 0
"""The rank that exchanges values: rank 0 is the lowest in every view."""

StoreAbove = TypeVar("StoreAbove")


class Above(Generic[StoreAbove]):
    """Of one Store or KV. `store`: the upper group's, on rank 0: `make` has made it of this process as a worker of the
    upper job, and all sites have come."""

    def __init__(self, upper: Upper, rank: int, make: Callable[[Worker], StoreAbove]) -> None:
        self._upper = upper
        self.store: StoreAbove | None = None
        self._relay: SiteRelay | None = None
        if rank == LEADER:
            self.store = self._join(make)

    def _join(self, make: Callable[[Worker], StoreAbove]) -> StoreAbove:
        worker = self._upper.join()
        try:
            return make(worker)
        except BaseException:
            self._upper.leave()
            raise

    def start(self, name: str, versions: VersionsNow, exchange: Exchange | None) -> None:
        """What this is of is open: exchanges begin. `exchange`: on rank 0."""
        if exchange is not None:
            self._relay = SiteRelay(self._upper, name, versions, exchange)

    @property
    def exchanges(self) -> int:
        """How many there were. On rank 0; 0 on others."""
        return 0 if self._relay is None else self._relay.exchanges

    @property
    def error(self) -> BytePSLikeError | None:
        """Why there are no more, if so. On rank 0."""
        return None if self._relay is None else self._relay.error

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Within the block no other exchange is under way. Blocks on rank 0 until that is so."""
        if self._relay is None:
            yield
        else:
            with self._relay.lock:
                yield

    def exchange(self, meeting: AbstractContextManager[Saved]) -> None:
        """All is exchanged once more, contributions so far with it. All ranks call it; nothing is pushed within the
        `meeting`. Blocks; raises on all of them what the exchanges have ended with."""
        with self.idle(), meeting as saved:
            self._exchange_last(saved)

    def finish(self, meeting: AbstractContextManager[Saved]) -> None:
        """The same for the last time: this site leaves the upper group, unless other stores of it are there."""
        try:
            self.exchange(meeting)
        finally:
            self.end()

    def _exchange_last(self, saved: Saved) -> None:
        saved.agree("exchange values with the upper group")
        if LEADER not in saved.present:
            raise PeerLostError(
                f"rank {LEADER} exchanges values of {saved.name!r} with the upper group, and is gone: what the site has"
                " done since its last exchange stays below",
                rank=saved.rank,
                operation="finish",
            )
        error: BytePSLikeError | None = None
        try:
            if self._relay is not None:
                self._relay.exchange_last()
        except BytePSLikeError as failed:
            error = failed
        saved.agree("have exchanged values with the upper group", error)

    def restored(self, saved: Saved) -> None:
        """The site's values were restored: that is no change for the upper group. All ranks call it."""
        if self._relay is not None:
            self._relay.begin_anew()
        saved.agree("go on below the upper group")

    def end(self) -> None:
        """There are no more exchanges. Idempotent."""
        if self._relay is not None:
            self._relay.end()


def check_below(terms: StoreTerms, specs: Sequence[TensorSpec], upper: Upper) -> None:
    """Raises InvalidArgumentError for a store that can't be below another."""
    if isinstance(terms.policy, Hogwild):
        raise InvalidArgumentError("hogwild has no servers, which could merge values of an upper group")
    if isinstance(terms.update, NoUpdate):
        raise InvalidArgumentError(
            "update none has no values, only rounds: there is nothing to merge with an upper group"
        )
    for spec in specs:
        dtype = spec.dtype.name.lower()
        if not upper.update.takes(np.dtype(dtype)):
            raise InvalidArgumentError(f"{spec.name!r}: the upper group's update {upper.update.name} takes no {dtype}")
        if spec.dtype is DType.INT64 and not (upper.merge.is_integer() and upper.adds_integers):
            raise InvalidArgumentError(
                f"{spec.name!r} has integers, which can't be merged in part, and have no mean: use merge=0 or 1, and"
                f" combine='sum', not merge={upper.merge:g} and combine={upper.combine!r}"
            )
