"""What a Store has of the upper group: on all ranks places for its values, on rank 0 what exchanges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, PeerLostError
from byteps_like.store.arrays import Array
from byteps_like.store.combining.registry import combining_by
from byteps_like.store.policies.bounded import Asp
from byteps_like.store.policies.unlocked import Hogwild
from byteps_like.store.saving.saved import Saved
from byteps_like.store.terms import StoreTerms
from byteps_like.store.updates.plain import Assign, NoUpdate
from byteps_like.store.upper.exchange import Exchange, Site, TensorBelow, ValuesAbove
from byteps_like.store.upper.relay import SiteRelay
from byteps_like.store.upper.upper import Upper
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.keeping import KeepSpec, KeptTensor

LEADER = 0
"""The rank that exchanges values: rank 0 is the lowest in every view."""

MakeStore = Callable[..., ValuesAbove]
"""Store itself."""


class Above:
    """Of one Store. `values`: where they begin; those of rank 0 are those of the upper group from here on, and it has
    blocked until all sites have come."""

    def __init__(
        self, upper: Upper, name: str, worker: Worker, values: Mapping[str, Array], make: MakeStore
    ) -> None:  # fmt: skip
        self._upper, self._values = upper, values
        self._above: ValuesAbove | None = None
        self._relay: SiteRelay | None = None
        if worker.rank == LEADER:
            self._above = self._join(name, make)

    def _join(self, name: str, make: MakeStore) -> ValuesAbove:
        upper = self._upper
        worker = upper.join()
        try:
            above = make(
                name, self._values, consistency=upper.consistency, update=upper.update, combine=upper.combine,
                whole=upper.update.whole, together=False, worker=worker,
            )  # fmt: skip
            for future in [above.pull(key, value) for key, value in self._values.items()]:
                future.wait()
        except BaseException:
            upper.leave()
            raise
        return above

    def start(self, site: Site, worker: Worker, kept: Mapping[str, KeptTensor]) -> None:
        """The store is open: exchanges begin. All ranks call it."""
        some = {name: one for name, one in kept.items() if one.declared.partitions}
        beside = _beside(site, worker, list(some.values()))
        if self._above is not None:
            tensors = [
                TensorBelow(name, one, other, self._values[name])
                for (name, one), other in zip(some.items(), beside, strict=True)
            ]
            turned = not self._upper.takes_changes
            exchange = Exchange(site, self._above, tensors, self._upper.merge, turned=turned)
            self._relay = SiteRelay(self._upper, site, exchange)
        self._values = {}

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

    def exchange_last(self, saved: Saved) -> None:
        """All tensors are exchanged once more, contributions so far with them. All ranks call it, in an `idle` block.
        Raises on all of them what the exchanges have ended with."""
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


def _beside(site: Site, worker: Worker, kept: Sequence[KeptTensor]) -> list[KeptTensor]:
    """Places for the upper group's values, on the shards of the site's own."""
    texts = StoreTerms(Asp(), Assign(), combining_by("sum", None, None)).texts
    specs = [
        replace(one.declared.spec, name=f"{one.declared.spec.name}/above", beside=one.declared.spec.name)
        for one in kept
    ]  # fmt: skip
    return [site.keeper.keep(declared, KeepSpec(*texts)) for declared in worker.declare(specs)]
