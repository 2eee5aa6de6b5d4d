"""Other backends inside a process group, for devices that they serve better: NCCL for CUDA tensors, say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from byteps_like.collectives.api import Group
from byteps_like.errors import InvalidArgumentError


class InnerBackends:
    """Backends by device type, made from the group's store when the first tensor on such a device comes.

    Making one blocks until all ranks of the group have come to the same call, and has its messages. Thread-safe.
    """

    def __init__(self, store: Any, group: Group, names: Mapping[str, str], timeout: timedelta) -> None:
        for device, name in names.items():
            if name not in _MAKERS or device == "cpu":
                raise InvalidArgumentError(
                    f"inner={{{device!r}: {name!r}}}: an inner backend is one of {', '.join(_MAKERS)}, for a device"
                    " other than cpu"
                )
        self._store, self._names, self._timeout = store, names, timeout
        self._rank, self._size = group.rank, group.size
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, device: torch.device) -> Any:
        """The backend for tensors on `device`; None if there is none. Raises InvalidArgumentError if it can't be."""
        kind = device.type
        if kind not in self._names:
            return None
        with self._lock:
            if kind not in self._made:
                self._made[kind] = self._make(kind)
            return self._made[kind]

    def _make(self, kind: str) -> Any:
        if self._store is None:
            raise InvalidArgumentError("an inner backend needs the store of init_process_group")
        store = PrefixStore(f"byteps_like/inner/{kind}", self._store)
        return backend(self._names[kind], store, self._rank, self._size, self._timeout)

    def close(self) -> None:
        """Ends them all."""
        with self._lock:
            for backend in self._made.values():
                backend.shutdown()
            self._made.clear()


def backend(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """torch's own backend of that name. Raises InvalidArgumentError for another one, or one that isn't built in."""
    if name not in _MAKERS:
        raise InvalidArgumentError(f"{name!r} is not a supported backend of torch; use one of {', '.join(_MAKERS)}")
    return _MAKERS[name](store, rank, size, timeout)


def _nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if not dist.is_nccl_available():
        raise InvalidArgumentError("inner={'cuda': 'nccl'}: this torch is built without NCCL")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


_MAKERS: dict[str, Callable[[Any, int, int, timedelta], Any]] = {"nccl": _nccl, "gloo": _gloo}
