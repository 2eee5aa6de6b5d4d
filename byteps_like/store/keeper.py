"""Who keeps a store's values: the job's servers, or, for Hogwild, the memory of the ranks' host."""

from __future__ import annotations

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.memory.unlocked import UnlockedValues
from byteps_like.store.policies.bounded import Asp
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import text_of
from byteps_like.store.policies.unlocked import Hogwild
from byteps_like.worker.api import Worker
from byteps_like.worker.keeping import Keeps


def keeper_of(policy: Policy, worker: Worker, store: str) -> Keeps:
    """Who keeps the values of `store` under `policy`. Raises InvalidArgumentError where nobody can."""
    if isinstance(policy, Hogwild):
        return UnlockedValues(worker)
    if isinstance(worker, Keeps):
        return worker
    raise InvalidArgumentError(
        f"rank {worker.rank}: Store {store!r} needs servers, and this job has none that can keep values; start some"
        " (byteps-like run -s 1)",
        rank=worker.rank,
        operation="Store",
    )


def check_change(before: Policy, after: Policy) -> None:
    """Raises InvalidArgumentError where values would have to move. At the end nobody waits for anybody, as always with
    Hogwild."""
    if isinstance(before, Hogwild) and isinstance(after, Hogwild | Asp):
        return
    if isinstance(before, Hogwild) or isinstance(after, Hogwild):
        raise InvalidArgumentError(
            f"{text_of(before)} can't become {text_of(after)}: hogwild's values are in the ranks' own memory, those of"
            " others on servers; make another Store"
        )
