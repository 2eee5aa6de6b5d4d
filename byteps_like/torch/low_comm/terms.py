"""What a user asks of training with few synchronizations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from byteps_like.compression.codec import Codec
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.partial import AUTO, KOfN
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.synchronous import Bsp
from byteps_like.store.upper.upper import Upper

Weigh = Callable[[float, int], float]
"""What a contribution counts, by samples or tokens, and steps, since the last."""

WEIGHTS: dict[str, Weigh] = {
    "one": lambda samples, steps: 1.0,  # noqa: ARG005 - all count alike
    "samples": lambda samples, steps: samples,  # noqa: ARG005
    "tokens": lambda samples, steps: samples,  # noqa: ARG005
    "tokens**2/steps": lambda samples, steps: samples**2 / steps,
}

ALIASES = {
    "H": "every",
    "sync_every": "every",
    "sync_steps": "every",
    "fragment_sync_delay": "delay",
    "fragment_update_alpha": "mix",
}
"""Names of the papers and of other libraries."""


@dataclass(frozen=True)
class LowCommTerms:
    """See LowComm, whose arguments these are. Raises InvalidArgumentError for values out of bounds."""

    every: int = 30
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0
    quorum: float = 1.0
    grace: float | Literal["auto"] = 0.0
    weight: str | Weigh = "one"
    codec: str | Codec = ""
    feedback: float = 0.95
    upper: Upper | None = None
    on_loss: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("fragments", 1), ("delay", 0)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise InvalidArgumentError(f"{name}={given!r} must be a whole number, at least {least}")
        if self.fragments > self.every:
            raise InvalidArgumentError(f"fragments={self.fragments}: at most one per step of every={self.every}")
        if self.delay >= self.every:
            raise InvalidArgumentError(
                f"delay={self.delay}: weights must land before the next ones go, every={self.every}"
            )
        if not 0 <= self.mix < 1:
            raise InvalidArgumentError(f"mix={self.mix} of a rank's own weights must be at least 0 and below 1")
        self._check_quorum()
        self._check_codec()
        if isinstance(self.weight, str) and self.weight not in WEIGHTS:
            raise InvalidArgumentError(f"weight={self.weight!r} is none of {', '.join(WEIGHTS)}, nor a function")

    def _check_codec(self) -> None:
        if not 0 <= self.feedback <= 1:
            raise InvalidArgumentError(f"feedback={self.feedback} of what a codec left out must be from 0 to 1")

    def codec_of_contributions(self) -> Codec | None:
        """None: they travel as they are. Raises InvalidArgumentError for a codec that there isn't."""
        return codec_of(self.codec) if isinstance(self.codec, str) and self.codec else self.codec or None

    def lone_codec(self) -> Codec | None:
        """The codec of contributions that go from every rank to every other; None: they don't. Raises
        InvalidArgumentError for one whose payloads can't be decoded one by one."""
        if not self.codec or self.needs_servers:
            return None
        from byteps_like.torch.compression.slot_codec import lone_codec  # needs the native core

        return lone_codec(self.codec, "codec")

    def _check_quorum(self) -> None:
        if not 0 < self.quorum <= 1:
            raise InvalidArgumentError(f"quorum={self.quorum} of the ranks must be above 0 and at most 1")
        if self.grace != AUTO and not (isinstance(self.grace, int | float) and 0 <= self.grace < math.inf):
            raise InvalidArgumentError(f'grace={self.grace!r} is neither a number of seconds, at least 0, nor "auto"')
        if self.grace and self.quorum == 1:
            raise InvalidArgumentError(f"grace={self.grace}: with quorum=1 all ranks are waited for anyway")

    @property
    def needs_servers(self) -> str:
        """What does, and why; "": nothing."""
        if self.upper is not None:
            return "upper needs servers, which exchange values with those above"
        if self.on_loss not in (None, "raise"):
            return f"on_loss={self.on_loss!r} needs servers, which keep the common weights"
        return f"quorum={self.quorum:g} needs servers, which don't wait for all" if self.quorum < 1 else ""

    def policy(self, ranks: int) -> Policy:
        """Whom a version waits for; what comes later counts in the next one."""
        if self.quorum == 1:
            return Bsp()
        return KOfN(math.ceil(self.quorum * ranks - 1e-9), grace=self.grace, late="next")

    def weigh(self, samples: float, steps: int) -> float:
        """What a contribution counts. Raises InvalidArgumentError where samples are needed and none were counted."""
        found = (WEIGHTS[self.weight] if isinstance(self.weight, str) else self.weight)(samples, steps)
        if not 0 < found < math.inf:
            raise InvalidArgumentError(
                f"weight={self.weight!r} of {samples:g} samples in {steps} steps is {found}: it must be above 0; tell"
                " LowComm.count() of each step's samples or tokens"
            )
        return found

    def pushes(self, fragment: int, step: int) -> bool:
        """Whether that fragment is due after that step (1 is the first): at even distances, the last at `every`."""
        first = self.every * (fragment + 1) // self.fragments
        return step >= first and (step - first) % self.every == 0


def low_comm_terms(given: Mapping[str, Any], others: Mapping[str, Any]) -> LowCommTerms:
    """Of arguments, and of others by one of the ALIASES. Raises TypeError for names that nobody knows, or that mean an
    argument which has been given."""
    found = dict(given)
    named: set[str] = set()
    for alias, value in others.items():
        name = ALIASES.get(alias)
        if name is None:
            raise TypeError(f"LowComm() got an unexpected keyword argument {alias!r}")
        if name in named or found[name] != getattr(LowCommTerms, name):
            raise TypeError(f"LowComm() got {alias!r} beside another name for {name!r}")
        named.add(name)
        found[name] = value
    return LowCommTerms(**found)
