"""Functions that servers know by name. A module registers its own when a server imports it (`byteps-like server
--import`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.updates.update import Values

Shape = tuple[int, ...]
StateShape = Callable[[Shape], Shape]
"""From a value's shape that of its state."""


@dataclass(frozen=True)
class Pushed:
    """What a version is made of, for a function.

    With asp, ssp and dssp that is one contribution. Where there are several, `rank` to `loss` are those of the one that
    was computed on the newest version.
    """

    gradient: Values
    """All contributions combined, of the value's shape and type; read-only."""
    lr: float | None
    """None: the push brings none."""
    version: int
    """That is being made, from 1."""
    contributions: tuple[Contribution, ...]
    """At least one, in the order in which they came."""

    @property
    def _newest(self) -> Contribution:
        return max(self.contributions, key=lambda one: one.base)

    @property
    def rank(self) -> int:
        """Of who has pushed."""
        return self._newest.source

    @property
    def clock(self) -> int:
        """How many contributions that rank has made before."""
        return self._newest.clock

    @property
    def base(self) -> int:
        """The version that it was computed on."""
        return self._newest.base

    @property
    def age(self) -> int:
        """How many versions were made since that one."""
        return self.version - 1 - self.base

    @property
    def weight(self) -> float:
        """What it counts beside others."""
        return self._newest.weight

    @property
    def loss(self) -> float:
        """Of its step, as fp32; NaN: not told."""
        return self._newest.loss


Apply = Callable[[Values, Values, Pushed], None]


@dataclass(frozen=True)
class Function:
    """One that makes versions."""

    apply: Apply
    state: StateShape


Scalars = Mapping[str, float]
Run = Callable[[Sequence[Values], Scalars], Scalars | None]


@dataclass(frozen=True)
class Command:
    """One that workers call."""

    run: Run
    writes: tuple[int, ...]
    """Which of its tensors it changes."""


FUNCTIONS: dict[str, Function] = {}
"""By name."""
COMMANDS: dict[str, Command] = {}
"""By name; those of the native core are not among them."""
OURS = (
    *("dot", "axpy", "scale", "copy", "merge"),
    *("portions.begin", "portions.take", "portions.claim", "portions.finish"),
)
"""Commands of the native core (server/store/calls)."""

_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
AnyApply = TypeVar("AnyApply", bound=Apply)
AnyRun = TypeVar("AnyRun", bound=Run)


def check_name(name: str) -> str:
    """`name`. Raises InvalidArgumentError for one that no function can have."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"a function can't be called {name!r}: a name has up to 64 letters, digits, '_', '.' and '-', and begins"
            " with a letter or '_'"
        )
    return name


def function(name: str, *, state: int | StateShape = 0) -> Callable[[AnyApply], AnyApply]:
    """Decorates `f(value, state, push)`, which stores may then have as their update, "function:NAME".

    A server calls it for each version of each partition, on its own threads, one call at a time in a process; it
    changes `value` and `state` in place and returns nothing. `value`: a flat array of float32, float64 or int64, or of
    two dimensions where rows belong together. `state`: of the same type, zeros at first; as many arrays of the value's
    shape as the argument `state` says, or of the shape that it returns for a value's. `push`: see Pushed. The arrays
    are memory of the server and must not be kept. What isn't finite afterwards is not applied, the state included.

    An exception ends the job. Raises InvalidArgumentError for a name that is taken, or can't be one.
    """
    check_name(name)
    shape_of = state if callable(state) else lambda shape: (state, *shape)

    def register(apply: AnyApply) -> AnyApply:
        known = FUNCTIONS.setdefault(name, Function(apply, shape_of))
        if known.apply is not apply:
            raise InvalidArgumentError(f"there is already a function {name!r}: {known.apply!r}")
        return apply

    return register


def command(name: str, *, writes: Sequence[int] = ()) -> Callable[[AnyRun], AnyRun]:
    """Decorates `f(views, scalars) -> dict of floats`, or None, which `Store.call` may then run on servers.

    A server calls it for each partition of the tensors that it is called on, and adds up what it returns by name.
    `views`: a flat array of each tensor's partition, in the order of the call; read-only, but for those at the places
    that `writes` names, which it changes in place. They are memory of the server and must not be kept. `scalars`: what
    the call brings. Nothing is changed where it raises an exception, or where what it writes is not finite.

    Raises InvalidArgumentError for a name that is taken, or can't be one.
    """
    check_name(name)

    def register(run: AnyRun) -> AnyRun:
        known = COMMANDS.setdefault(name, Command(run, tuple(writes)))
        if name in OURS or known.run is not run:
            raise InvalidArgumentError(f"there is already a function {name!r} to call on values")
        return run

    return register


def function_of(name: str) -> Function:
    """Raises InvalidArgumentError for one that nobody has registered in this process."""
    if name not in FUNCTIONS:
        known = ", ".join(sorted(FUNCTIONS)) or "none"
        raise InvalidArgumentError(f"there is no function {name!r} here; there are {known}")
    return FUNCTIONS[name]


def state_count(found: Function, shape: Shape) -> int:
    """Elements of state of a value of `shape`."""
    return math.prod(found.state(shape))
