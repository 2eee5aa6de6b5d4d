"""What the native core calls to run functions of users (byteps_like/_native/store/functions_py.cc), with the
interpreter lock, on the threads of servers.

Memory comes as addresses; it is the caller's. What goes wrong is returned as text, and logged with its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from byteps_like.dtypes import DType
from byteps_like.store.functions.registry import COMMANDS, FUNCTIONS, Pushed, function_of
from byteps_like.store.functions.registry import state_count as count_state
from byteps_like.store.functions.views import Views
from byteps_like.store.policies.policy import Contribution

log = logging.getLogger(__name__)

Shape = tuple[int, ...]
RowsAndWidth = tuple[int, int]
PushFields = tuple[int, int, int, float, float]
"""Source, clock, base, weight, loss."""


def has_function(name: str) -> bool:
    """Whether a module of this process has registered it."""
    return name in FUNCTIONS


def state_count(name: str, rows: int, width: int) -> int:
    """Elements of state of a value."""
    return count_state(function_of(name), _shape((rows, width)))


def update(
    name: str, dtype: int, shape: RowsAndWidth, value: int, state: int, gradient: int,
    lr: float | None, version: int, pushes: Sequence[PushFields],
) -> str | None:  # fmt: skip
    """Runs a function on a value and its state. None, or what went wrong."""
    made_of = tuple(Contribution(*fields) for fields in pushes)

    def run(views: Views) -> None:
        found, own = function_of(name), _shape(shape)
        found.apply(
            views.of(value, own, writable=True),
            views.of(state, found.state(own), writable=True),
            Pushed(views.of(gradient, own, writable=False), lr, version, made_of),
        )

    return _failure(name, DType(dtype), run)


def writes_of(name: str) -> list[int] | None:
    """Which of its tensors a function to be called changes; None: no module of this process has registered it."""
    return list(COMMANDS[name].writes) if name in COMMANDS else None


def command(
    name: str, dtype: int, shape: RowsAndWidth,
    places: Sequence[tuple[int, bool]], scalars: Sequence[tuple[str, float]],
) -> list[tuple[str, float]] | str:  # fmt: skip
    """Runs one on a partition of each tensor, or on rows: where they lie, and whether they are changed. Its numbers, or
    what went wrong."""
    figures: list[tuple[str, float]] = []

    def run(views: Views) -> None:
        found = [views.of(address, _shape(shape), writable=writable) for address, writable in places]
        figures.extend((key, float(value)) for key, value in (COMMANDS[name].run(found, dict(scalars)) or {}).items())

    return _failure(name, DType(dtype), run) or figures


def _shape(shape: RowsAndWidth) -> Shape:
    """Where rows are of one element, nothing belongs together."""
    rows, width = shape
    return (rows,) if width == 1 else (rows, width)


def _failure(name: str, dtype: DType, run: Callable[[Views], None]) -> str | None:
    views = Views(dtype)
    try:
        run(views)
    except Exception as error:  # of a user's code: anything
        log.exception("function %r", name)
        return f"function {name!r} raised {type(error).__name__}: {error}"
    if views.end():
        return None
    return f"function {name!r} keeps an array that it was given: the memory is the server's, so copy what is to be kept"
