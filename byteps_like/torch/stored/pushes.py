"""The steps of an optimizer whose weights servers keep: what is common to both ways of applying gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from byteps_like.store.arrays import Array
from byteps_like.store.future import Future
from byteps_like.store.policies.policy import Policy
from byteps_like.store.saving.checkpoint import Taken
from byteps_like.store.saving.manifest import Manifest
from byteps_like.store.saving.saved import SavedContent
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.stored.layers import FactorPair
from byteps_like.torch.stored.periods import Periods
from byteps_like.torch.stored.weights import KeptWeights


@dataclass(frozen=True)
class Contributed:
    """Contributions of this rank that servers have settled; one is a parameter's."""

    made: int = 0
    left_out: int = 0
    """That came too late, or were not finite."""
    oldest: int = 0
    """Most versions that were made between what one was computed on and what it became part of."""


class Follower(Protocol):
    """Looks at this rank's steps, and may have another policy hold from then on."""

    def after_step(self) -> None:
        """One is over."""

    def before_finish(self) -> None:
        """There will be no more."""

    def end(self) -> None:
        """All ranks are about to change the policy themselves."""


class Pushes(ABC):
    """One thread at a time."""

    def __init__(self, weights: KeptWeights, periods: Periods) -> None:
        self.weight = 1.0
        """What contributions count."""
        self.passes_per_step = 1
        self._weights, self._periods = weights, periods
        self._steps = 1
        """The number of the one that is under way."""
        self._under_way: deque[Future] = deque()
        self._settled = Contributed()
        self.followers: list[Follower] = []

    @abstractmethod
    def step(self, plain: Callable[[], Any]) -> None:
        """Contributes what is due, by `plain`, the plain optimizer's step, or without; blocks until weights land."""

    def refresh(self) -> None:  # noqa: B027 - nothing to do without hooks
        """There may be new parameters."""

    @abstractmethod
    def block(self, weight: float | None) -> None:
        """A block of the mini-batch is finished, which counts so much of this rank's weight; None: as much as others.
        Contributes it where servers wait for no more than that."""

    def restart(self) -> None:  # noqa: B027 - nothing to do without hooks
        """Backward begins anew. What it has contributed stays so."""

    def check_between_steps(self) -> None:  # noqa: B027 - nothing to do without hooks
        """Raises InvalidArgumentError within a step that is hurt by a change."""

    def change(self, policy: Policy) -> None:
        """Another policy holds from here on, and followers leave it so. Blocks until all ranks have called it."""
        for follower in self.followers:
            follower.end()
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Another policy holds from here on. Blocks until all ranks have called it."""
        self._weights.change(policy)

    def settle(self) -> None:
        """Blocks until all ranks have called it, with everything counted that can be. See KeptWeights."""
        self._weights.settle()

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self._weights.policy

    def check_unsent(self, what: str) -> None:  # noqa: B027 - nothing to do without hooks
        """Raises InvalidArgumentError where gradients are gone before `what` can see them."""

    def close(self) -> None:  # noqa: B027 - nothing to do without hooks
        """Removes all hooks. Idempotent."""

    def pull(self) -> None:
        """Blocks until the weights that servers have now have landed."""
        self._weights.open()
        self._land([parameter for _, parameter in self._trained()])

    def checkpoint(self, folder: Path) -> int:
        """Writes what servers keep of the weights; the version. Blocks until all ranks have called it."""
        return self._weights.checkpoint(folder)

    def taken(self) -> Taken:
        """This rank's share of a checkpoint. Blocks until all ranks have theirs."""
        found = self._weights.taken()
        self.contributed()  # servers have settled all that can be
        return found

    def leave(self, leaving: Iterable[int]) -> Taken:
        """What goes on in the next world. Blocks until all ranks have come here."""
        found = self._weights.leave(leaving)
        self.contributed()
        return found

    def reopen(self) -> None:
        """In the next world: what this rank has contributed is settled, or late, and no other policy is tried."""
        self._under_way.clear()
        for follower in self.followers:
            follower.end()
        self._weights.reopen()

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """Weights become those of the world before, and land."""
        self._weights.take_over(manifest, contents)
        self.pull()

    def residuals(self) -> dict[str, Array]:
        """By parameter, what a codec has left out of this rank's contributions. See Store.residuals."""
        return self._weights.residuals()

    def owe(self, name: str, residual: Array) -> None:
        """Makes that what is left out of a parameter's."""
        self._weights.owe(name, residual)

    def restore(self, folder: Path) -> None:
        """The same back; then it lands."""
        self._weights.restore(folder)
        self.pull()

    def version(self) -> int:
        """Of what landed last: the oldest of the parameters'."""
        return self._weights.version()

    def finish(self) -> None:
        """This rank contributes no more. Blocks until that is so of all ranks, and servers have said what became of
        this one's contributions. Raises the job's error."""
        for follower in self.followers:
            follower.before_finish()
        self._weights.finish()
        for future in self._under_way:
            future.wait()

    def contributed(self) -> Contributed:
        """Never blocks. Raises the job's error where a contribution has ended with it."""
        while self._under_way and self._under_way[0].done():
            future = self._under_way.popleft()
            future.wait()
            self._settled = replace(
                self._settled,
                made=self._settled.made + 1,
                left_out=self._settled.left_out + (not future.counted),
                oldest=max(self._settled.oldest, future.age),
            )
        return self._settled

    def _trained(self) -> list[Named]:
        return [(name, parameter) for name, parameter in self._weights.named() if parameter.requires_grad]

    def _due(self) -> list[torch.Tensor]:
        """Whose weights are to land by the end of this step."""
        return [parameter for name, parameter in self._trained() if self._periods.pulls(name, self._steps)]

    def _push(self, parameter: torch.Tensor, value: torch.Tensor | FactorPair, **push: Any) -> None:
        """Contributes `value`, with this rank's weight unless `push` has another."""
        self._under_way.append(self._weights.push(parameter, value, **{"weight": self.weight, **push}))

    def _land(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            self._weights.start_read(parameter)
        for parameter in parameters:
            self._take(parameter, self._weights.finish_read(parameter))

    def _take(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """`parameter` becomes `value`, in its own type and on its own device."""
        with torch.no_grad():
            parameter.copy_(value)

    def _next_step(self) -> None:
        self._steps += 1
        self.contributed()
        for follower in self.followers:
            follower.after_step()
