"""PyTorch's own tests of its distributed package, as they are shipped: `DistributedTest`, for any backend.

Decorators there choose tests by the backend's name when the file is imported, and tests what they do when they run:
some are for gloo alone, some for MPI, and a name that torch doesn't know is asked for next to nothing. So the file is
imported as for gloo, and once more as for MPI, then runs with a name that is the backend's and equals these too: a CPU
backend is asked for all that either of them is.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import unittest
from types import ModuleType
from typing import Any

FILE = "torch.testing._internal.distributed.distributed_test"
KINDS = ("gloo", "mpi")
ON_GPUS = {"skip_if_no_gpu", "skip_if_lt_x_gpu"}
TOO_FEW = "Skipped due to small world size."
"""What a test says that wants eight ranks."""


class Shipped:
    """The tests, each of which may take `seconds`. Imports torch, and starts no thread: processes can be forked."""

    def __init__(self, backend: str, seconds: float) -> None:
        os.environ |= {"WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
        common: Any = importlib.import_module("torch.testing._internal.common_distributed")
        common.TIMEOUT_DEFAULT = seconds
        common.TIMEOUT_OVERRIDE.clear()
        self._modules = [_imported_as(kind) for kind in KINDS]
        os.environ["BACKEND"] = backend
        for module, kind in zip(self._modules, KINDS, strict=True):
            module.BACKEND = Name(backend, kind)
        self._classes = [_case(module) for module in self._modules]
        gc.freeze()  # pages that the collector leaves alone stay shared

    def names(self) -> list[str]:
        """Of all tests, in the order of the file."""
        return [name for name in vars(self._modules[0].DistributedTest._DistTestBase) if name.startswith("test_")]

    def why_not(self, name: str) -> str | None:
        """Why torch's decorators leave the test out, whichever CPU backend it is imported for; None if they don't.

        Those that ask for GPUs would do so in each rank, when it has met the others.
        """
        if not _gpus() and _decorators(self._test(name)) & ON_GPUS:
            return "needs a GPU"
        reasons = [_why_not(module, name) for module in self._modules]
        return None if None in reasons else reasons[0]

    def _test(self, name: str) -> Any:
        return getattr(self._modules[0].DistributedTest._DistTestBase, name)

    def run(self, name: str, ranks: int) -> unittest.TestResult:
        """Runs one test in processes forked from this one."""
        place = next(place for place, module in enumerate(self._modules) if _why_not(module, name) is None)
        os.environ["WORLD_SIZE"] = str(ranks)
        sys.modules[FILE] = self._modules[place]  # by whose name its objects are pickled
        result = unittest.TestResult()
        self._classes[place](name).run(result)
        return result


class Name(str):
    """A backend's name, which equals that of another `kind` too."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, name: str, kind: str) -> Name:
        made = super().__new__(cls, name)
        made.kind = kind
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and (other == self.kind or str.__eq__(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _imported_as(kind: str) -> Any:
    os.environ["BACKEND"] = kind
    sys.modules.pop(FILE, None)
    return importlib.import_module(FILE)


def _why_not(module: ModuleType, name: str) -> str | None:
    test = getattr(module.DistributedTest._DistTestBase, name)
    return test.__unittest_skip_why__ if getattr(test, "__unittest_skip__", False) else None


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _decorators(test: Any) -> set[str]:
    """Names of the functions that have wrapped it."""
    found = set()
    while hasattr(test, "__wrapped__"):
        found.add(test.__code__.co_qualname.partition(".")[0])
        test = test.__wrapped__
    return found


def _case(module: Any) -> Any:
    class Forked(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Forked
