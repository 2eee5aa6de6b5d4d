"""The names a worker has declared, and what the scheduler said of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from byteps_like.control.placing.declarations import name_keys
from byteps_like.worker.api import Declared, TensorSpec
from byteps_like.worker.local import check_codec, check_same

_PLACES_NAMED = 3
"""That a tensor has moved to: errors of other ranks may speak of the one before."""

_GONE_NAMED = 1024
"""Names that are used no more: a timeline may still show them."""

Declare = Callable[[list[TensorSpec]], list[Declared]]


class Catalogue:
    """Names and their placements. Thread-safe; asks the scheduler once per name."""

    def __init__(self, declare: Declare) -> None:
        self._declare = declare
        self._lock = threading.Lock()
        self._known: dict[str, Declared] = {}
        self._names: dict[int, str] = {}
        self._gone: deque[Declared] = deque(maxlen=_GONE_NAMED)
        self._moved: dict[str, deque[int]] = {}  # tensor ids of the newest places of names that have moved

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """The entries of `specs`, in order; one round trip for all that are new.

        Raises MismatchError for a name that comes again with another dtype, shape or codec, here or on another rank.
        """
        with self._lock:
            for spec in specs:
                self._check(spec)
            fresh = list({spec.name: spec for spec in specs if spec.name not in self._known}.values())
            for item in self._declare(fresh) if fresh else ():
                self._known[item.spec.name] = item
                self._names[item.tensor_id] = item.spec.name
            return [self._known[spec.name] for spec in specs]

    def forget(self, declared: Declared) -> None:
        """The name is not used any more; texts may still speak of its keys for a while."""
        with self._lock:
            self._known.pop(declared.spec.name, None)
            self._gone.append(declared)
            for number in (declared.tensor_id, *self._moved.pop(declared.spec.name, ())):
                self._names.pop(number, None)

    def rename(self, moved: Declared) -> None:
        """The tensor's keys are those of `moved` from now on; errors may speak of them."""
        with self._lock:
            self._names[moved.tensor_id] = moved.spec.name
            places = self._moved.setdefault(moved.spec.name, deque())
            places.append(moved.tensor_id)
            if len(places) > _PLACES_NAMED:
                del self._names[places.popleft()]

    def name_keys(self, text: str) -> str:
        """`text` with names for the keys in it: the core knows keys only."""
        return name_keys(text, self._names)

    def partitions(self) -> dict[int, tuple[str, int]]:
        """Name and number of each partition by its key. Never blocks."""
        known = [*self._gone.copy(), *self._known.copy().values()]
        return {part.key: (item.spec.name, number) for item in known for number, part in enumerate(item.partitions)}

    def _check(self, spec: TensorSpec) -> None:
        known = self._known.get(spec.name)
        if known is not None:
            check_same(known.spec, spec)
        check_codec(spec)
