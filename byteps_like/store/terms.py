"""How servers keep what a store or a table has: the policy, the update, and how contributions are combined."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.key import check_rounds
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import policy_of, text_of
from byteps_like.store.updates.registry import update_of
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.worker.api import ON_LOSS, Worker


@dataclass(frozen=True)
class StoreTerms:
    """What all ranks give alike."""

    policy: Policy
    update: ValueUpdate
    combining: Combining
    from_root: bool = False
    """Whether values begin as rank 0's, not as zeros."""
    on_loss: str = ON_LOSS[0]

    @property
    def texts(self) -> tuple[str, str, str]:
        """Of the policy, of combining, and of the update, as servers are told."""
        return text_of(self.policy), self.combining.text(), self.update.spec()

    @property
    def kept_as(self) -> str:
        """How values are kept, but for the policy: what must be the same where they are restored."""
        return f"combine {self.combining.text()}, update {self.update.spec()}"

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
    on_loss: str = ON_LOSS[0],
) -> StoreTerms:
    """What arguments mean. Raises InvalidArgumentError for a policy that so many ranks can't have, and so on."""
    found = update_of(update) if isinstance(update, str) else update
    policy = policy_for(worker, consistency, found, combining)
    if init not in ("root", "zeros"):
        raise InvalidArgumentError(f"init={init!r}: values can begin as those of 'root', rank 0, or as 'zeros'")
    if on_loss not in ON_LOSS:
        raise InvalidArgumentError(f"on_loss={on_loss!r} is none of {', '.join(ON_LOSS)}")
    return StoreTerms(policy, found, combining, init == "root", on_loss)


def policy_for(worker: Worker, consistency: Policy | str, update: ValueUpdate, combining: Combining) -> Policy:
    """The policy that `consistency` means, if so many ranks, this update and this way of combining can have it."""
    policy = policy_of(consistency, worker.size)
    check_rounds(policy, update)
    combining.check(policy, worker.size)
    return policy
