"""Launches what a codec's recipe says, through CUDA's driver by ctypes: for tests and benchmarks on a device.

The engine launches natively; here the same recipes (`_core.GpuCodec`) are carried out call by call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from byteps_like.errors import SystemCallError

_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_WITHOUT_ASKING = 48 << 10


class Runner:
    """The calling thread's current context, and a stream of it.

    Args:
        stream: A CUstream as torch or CuPy give it; 0 is the default one.
        library: The driver; tests pass their own.

    Raises:
        OSError: There is no such library.
    """

    def __init__(self, stream: int = 0, library: str = "libcuda.so.1") -> None:
        self._driver = ctypes.CDLL(library)
        self._stream = ctypes.c_void_p(stream)

    def run(self, launches: Iterable[tuple[Any, ...]]) -> None:
        """Queues them, in order; returns at once.

        Raises:
            SystemCallError: The driver refuses one; the message has its number.
        """
        for kind, *what in launches:
            getattr(self, f"_{kind}")(*what)

    def _fill(self, to: int, value: int, count: int) -> None:
        self._call("cuMemsetD8Async", ctypes.c_uint64(to), ctypes.c_ubyte(value), ctypes.c_size_t(count), self._stream)

    def _copy(self, to: int, source: int, count: int) -> None:
        self._call(
            "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(count), self._stream
        )

    def _launch(self, kernel: int, shape: tuple[int, int, int], packed: list[bytes]) -> None:
        blocks, threads, shared = shape
        function = ctypes.c_void_p(kernel)
        if shared > _WITHOUT_ASKING:
            self._call("cuFuncSetAttribute", function, _MOST_DYNAMIC_SHARED, shared)
        values = [ctypes.create_string_buffer(argument, len(argument)) for argument in packed]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared, self._stream, addresses, None)

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error != 0:
            raise SystemCallError(f"{name}: CUDA error {error}")
