"""How servers keep what a store or a table has: the policy, the update, and how contributions are combined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.key import check_rounds
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import policy_of, text_of
from byteps_like.store.policies.unlocked import Hogwild
from byteps_like.store.updates.registry import update_of
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.worker.api import ON_LOSS, Placed, Places, Worker

MOST_REPLICAS = 8


@dataclass(frozen=True)
class StoreTerms:
    """What all ranks give alike."""

    policy: Policy
    update: ValueUpdate
    combining: Combining
    from_root: bool = False
    """Whether values begin as rank 0's, not as zeros."""
    on_loss: str = ON_LOSS[0]
    replicas: int = 1
    """How many servers are to have each value."""
    asked: tuple[str | None, int | None] = (None, None)
    """What of `on_loss` and `replicas` was said: the rest depends on the job."""

    @property
    def texts(self) -> tuple[str, str, str]:
        """Of the policy, of combining, and of the update, as servers are told."""
        return text_of(self.policy), self.combining.text(), self.update.spec()

    @property
    def kept_as(self) -> str:
        """How values are kept, but for the policy: what must be the same where they are restored."""
        return f"combine {self.combining.text()}, update {self.update.spec()}"

    def again(self, worker: Worker) -> StoreTerms:
        """The same in another world. Raises InvalidArgumentError for a policy that so many ranks can't have."""
        policy = policy_for(worker, self.policy, self.update, self.combining)
        return replace(self, policy=policy, **_of_job(worker, policy, *self.asked))

    def check_push(self, weight: float, lr: float | None, *, integers: bool, last: bool = True) -> None:
        """Raises InvalidArgumentError for what can't come with a contribution."""
        self.update.rate(lr)
        self.combining.check_weight(weight)
        self.combining.check_block(last)
        if integers and not float(weight).is_integer():
            raise InvalidArgumentError(f"weight {weight}: contributions of integers need whole numbers as weights")


def terms_of(
    worker: Worker,
    consistency: Policy | str,
    update: ValueUpdate | str,
    combining: Combining,
    init: str = "zeros",
    on_loss: str | None = None,
    replicas: int | None = None,
) -> StoreTerms:
    """What arguments mean. Raises InvalidArgumentError for a policy that so many ranks can't have, and so on."""
    found = update_of(update) if isinstance(update, str) else update
    policy = policy_for(worker, consistency, found, combining)
    if init not in ("root", "zeros"):
        raise InvalidArgumentError(f"init={init!r}: values can begin as those of 'root', rank 0, or as 'zeros'")
    if on_loss not in (None, *ON_LOSS):
        raise InvalidArgumentError(f"on_loss={on_loss!r} is none of {', '.join(ON_LOSS)}")
    asked = on_loss, replicas
    return StoreTerms(policy, found, combining, init == "root", asked=asked, **_of_job(worker, policy, *asked))


def _of_job(worker: Worker, policy: Policy, on_loss: str | None, replicas: int | None) -> dict[str, Any]:
    """What depends on the job: by default ranks go on without one that has died where all else does, too."""
    places = worker.places() if isinstance(worker, Placed) else Places(1, 0)
    usual = "finish" if places.finishes else "raise"
    return {"on_loss": on_loss or usual, "replicas": _replicas(places, policy, replicas)}


def _replicas(places: Places, policy: Policy, asked: int | None) -> int:
    """By default two, where another server goes on with the copy. An elastic job that has one server may get more."""
    possible = places.copies and not isinstance(policy, Hogwild)
    if asked is None:
        return 2 if possible else 1
    if not 1 <= asked <= MOST_REPLICAS:
        raise InvalidArgumentError(f"replicas={asked}: a value is on 1 to {MOST_REPLICAS} servers")
    if asked > 1 and isinstance(policy, Hogwild):
        raise InvalidArgumentError(f"replicas={asked}: with hogwild values are in memory of one host: use replicas=1")
    if asked > 1 and places.finishes and places.servers == 1:
        return 1
    if asked > 1 and not possible:
        raise InvalidArgumentError(
            f"replicas={asked}: copies are of use where a job outlives its servers: in elastic jobs (byteps-like run"
            f" --min-workers) without portable workers; this job has {places.servers} servers"
        )
    return asked


def policy_for(worker: Worker, consistency: Policy | str, update: ValueUpdate, combining: Combining) -> Policy:
    """The policy that `consistency` means, if so many ranks, this update and this way of combining can have it."""
    policy = policy_of(consistency, worker.size)
    check_rounds(policy, update)
    combining.check(policy, worker.size)
    return policy
