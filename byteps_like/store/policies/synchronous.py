"""Bulk-synchronous: each version is made of one push of every live source (Valiant, CACM 1990)."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from byteps_like.store.policies.policy import NOW, Contribution, Key, Policy, PushVerdict


@dataclass(frozen=True)
class Bsp(Policy):
    """No source reads before all have pushed as often as it has."""

    name = "bsp"

    @override
    def on_push(self, key: Key, push: Contribution) -> PushVerdict:
        return PushVerdict.COUNT

    @override
    def ready_at(self, key: Key) -> float | None:
        return NOW if key.open.pushes and key.clocks.keys() <= key.open.finished.keys() else None

    @override
    def may_read(self, key: Key, reader: int) -> bool:
        return reader not in key.open.sources
