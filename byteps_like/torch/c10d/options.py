"""How the calls of one process group are made: what `pg_options` may say, and the options of single calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from byteps_like.collectives.api import CallOptions, Traffic
from byteps_like.errors import InvalidArgumentError

SHRINK_DEFAULT, SHRINK_ABORT = 0, 1
"""torch's flags of these names, which older releases lack."""


@dataclass(frozen=True)
class GroupOptions:
    """Options of a "byteps" process group: `pg_options` of `init_process_group("byteps")` and `new_group`.

        dist.init_process_group("byteps", pg_options=bps.GroupOptions(reduction="ordered"))

    Immutable. Give all ranks of a group the same options.

    reduction: "fast", or "ordered" for results that are bit-identical from run to run and on all ranks.
    algorithm: the algorithm of all calls, by a name from docs/reference/algorithms.md; "" chooses one per call.
    traffic: the class of the group's messages (byteps_like.collectives.api.Traffic). Where several messages wait for a
        link, the lowest class goes first; None takes the class from the kind of call.
    priority: within a class, messages of higher priority go first.
    inner: by device type, the backend that takes tensors of that device instead of staging them in host memory:
        {"cuda": "nccl"}.
    local: by device type, how the ranks of one host reduce among themselves: {"cuda": "auto"}, "nccl" or "ipc". An
        all_reduce then is a reduce-scatter within the host, an all-reduce of each rank's share between hosts, and an
        all-gather within the host. It needs at least two ranks per host, the same number on all (docs/how-to/gpu.md).

    Raises InvalidArgumentError for any other `reduction`.
    """

    reduction: str = "fast"
    algorithm: str = ""
    traffic: Traffic | None = None
    priority: int = 0
    inner: Mapping[str, str] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reduction not in ("fast", "ordered"):
            raise InvalidArgumentError(f"reduction={self.reduction!r} is neither 'fast' nor 'ordered'")


def checked(options: Any) -> Any:
    """`options`, by default all defaults. Raises InvalidArgumentError for what is no GroupOptions."""
    if options is None:
        return GroupOptions()
    if not isinstance(options, GroupOptions):
        raise InvalidArgumentError(
            f"pg_options of 'byteps' is a byteps_like.torch.GroupOptions, not {type(options).__name__}"
        )
    return options


class CallDefaults:
    """The options of calls by their timeout: made once, then looked up. Thread-safe."""

    def __init__(self, options: GroupOptions, timeout: timedelta) -> None:
        self._base = CallOptions(
            algorithm=options.algorithm,
            reduction=options.reduction,
            traffic=options.traffic,
            priority=options.priority,
        )
        self._known: dict[tuple[timedelta | None, bool], CallOptions] = {}
        self.set_timeout(timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of calls that have none of their own."""
        self.timeout = timeout.total_seconds()
        self.default = self._base._replace(timeout=self.timeout)
        self._known = {(None, False): self.default}

    def get(self, timeout: timedelta | None, *, waits: bool = False) -> CallOptions:
        """The options of a call. None, or a time that is not positive, is how torch says that it has no own timeout.

        `waits`: torch waits for the call before it returns to the user.
        """
        found = self._known.get((timeout, waits))
        if found is None:
            seconds = timeout.total_seconds() if timeout is not None else 0.0
            found = self._base._replace(timeout=seconds if seconds > 0 else self.timeout, waits=waits)
            if len(self._known) < _MOST_KNOWN:
                self._known[timeout, waits] = found
        return found


_MOST_KNOWN = 64
