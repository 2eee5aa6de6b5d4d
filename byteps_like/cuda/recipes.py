"""Carries out what a codec's recipe says to launch, call by call: for tests and benchmarks on a device.

The engine launches the same recipes (`_core.GpuCodec`) natively.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def run(gpu: Any, stream: int, launches: Iterable[tuple[Any, ...]]) -> None:
    """Queues `launches` on a stream of `gpu` (`_core.Gpu`), in order; returns at once.

    Raises DeviceError where the driver refuses one.
    """
    for kind, *what in launches:
        if kind == "launch":
            kernel, (blocks, threads, shared), arguments = what
            gpu.launch(kernel, blocks, threads, shared, stream, arguments)
        else:
            (gpu.fill if kind == "fill" else gpu.copy)(*what, stream)


class Workbench:
    """A device, a stream of its own, and kernels by name. Its calls block, but for `run`; for one thread.

    Args:
        gpu: A `_core.Gpu`.
        kernels: As `handles` gives them.
    """

    def __init__(self, gpu: Any, kernels: Mapping[str, int]) -> None:
        self.gpu, self.kernels, self.stream = gpu, dict(kernels), gpu.stream()

    def put(self, array: NDArray[Any]) -> Any:
        """A copy on the device (`_core.Memory`), of 16 bytes at least."""
        memory = self.gpu.allocate(max(array.nbytes, 16))
        if array.nbytes:
            self._copied(np.array(array), lambda address: (memory.address, address))
        return memory

    def empty(self, nbytes: int) -> Any:
        """Memory of the device, with some bytes in it that mean nothing."""
        memory = self.gpu.allocate(max(nbytes, 16))
        self.gpu.fill(memory.address, 0xA5, memory.nbytes, self.stream.handle)
        return memory

    def get(self, memory: Any, nbytes: int) -> NDArray[np.uint8]:
        """The first of its bytes, after what was queued before."""
        found = np.zeros(max(nbytes, 1), np.uint8)
        self._copied(found, lambda address: (address, memory.address))
        return found[:nbytes]

    def _copied(self, array: NDArray[Any], ends: Callable[[int], tuple[int, int]]) -> None:
        """Between the target and the source that `ends` tells of the array's address; it is page-locked meanwhile."""
        pinned = self.gpu.pin_address(array.ctypes.data, array.nbytes)
        self.gpu.copy(*ends(pinned.address), array.nbytes, self.stream.handle)
        self.stream.synchronize()

    def run(self, launches: Iterable[tuple[Any, ...]]) -> None:
        """Queues them; returns at once."""
        run(self.gpu, self.stream.handle, launches)
