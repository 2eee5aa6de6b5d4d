"""One rank of a host in a process of its own, without torch: reductions over the software GPU (tests/software_gpu)."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import numpy as np

from byteps_like import _core
from byteps_like.dtypes import DType

STAGE = 8192
KERNELS = [f"peers_sum_{dtype}" for dtype in ("float32", "float16", "bfloat16")]
CASES = [
    (numel, dtype, divisor)
    for numel in (1, 3, 1000, 10_007)
    for dtype, divisor in ((DType.FLOAT32, 1), (DType.FLOAT16, 3), (DType.BFLOAT16, 1))
]


def values(rank: int, numel: int, dtype: DType) -> np.ndarray[Any, Any]:
    """A rank's array: floats, those of bf16 by their upper halves."""
    plain = np.random.default_rng(100 * rank + numel).standard_normal(numel).astype(np.float32)
    if dtype is DType.BFLOAT16:
        return (plain.view(np.uint32) >> 16).astype(np.uint16)
    return plain.astype(np.float16 if dtype is DType.FLOAT16 else np.float32)


class Rank:
    """The device, its kernels and the peers of one process."""

    def __init__(self, pipe: Any, rank: int, size: int, driver: str, timeout: float) -> None:
        self.library = ctypes.CDLL(driver)
        self.library.software_gpu_misuse.restype = ctypes.c_char_p
        self.library.software_gpu_objects.restype = self.library.software_gpu_allocated.restype = ctypes.c_uint64
        self.gpu = _core.Gpu(rank % 2, driver)
        module = self.gpu.load(driver)
        self.objects = self.library.software_gpu_objects()
        page = _core.SharedBuffer(4096)
        pipe.send((os.getpid(), page.fd))
        others = pipe.recv()
        if rank:
            pid, number = others[0]
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
            page = _core.SharedBuffer.map(fd)
            os.close(fd)
        functions = {name: module.function(name) for name in KERNELS}
        pids = [pid for pid, _ in others]
        self.peers = _core.GpuPeers(self.gpu, functions, page, rank, pids, STAGE, timeout)
        pipe.send(self.peers.export())
        self.peers.join(pipe.recv())
        self.stream, self.rank = self.gpu.stream(), rank

    def reduced(self, numel: int, dtype: DType, divisor: int) -> bytes:
        """All ranks' sum, by way of the slices."""
        source = values(self.rank, numel, dtype)
        whole, own = self.gpu.allocate(source.nbytes), self.gpu.allocate(source.nbytes)
        ctypes.memmove(whole.address, source.ctypes.data, source.nbytes)  # its memory is the host's
        handle = self.stream.handle
        try:
            self.peers.reduce_scatter(handle, whole.address, own.address, numel, int(dtype), divisor)
            self.peers.all_gather(handle, whole.address, own.address, numel, int(dtype))
        finally:  # the first may be under way where the second has failed: the arrays live until it is over
            self.stream.synchronize()
        self.peers.check()
        return ctypes.string_at(whole.address, source.nbytes)

    def left_over(self) -> tuple[int, int, str]:
        """Objects and bytes on the device that are still there once all is dropped, and what was misused."""
        del self.peers, self.stream
        return (
            self.library.software_gpu_objects() - self.objects,
            self.library.software_gpu_allocated(),
            self.library.software_gpu_misuse().decode(),
        )


def sums(pipe: Any, rank: int, size: int, driver: str) -> None:
    """All cases, then what is left over."""
    one = Rank(pipe, rank, size, driver, 30.0)
    pipe.send([one.reduced(*case) for case in CASES])
    pipe.recv()  # all are through
    pipe.send(one.left_over())


def death(pipe: Any, rank: int, size: int, driver: str) -> None:
    """The last rank is killed while the others' streams wait for it."""
    one = Rank(pipe, rank, size, driver, 30.0)
    one.reduced(*CASES[0])
    pipe.send("ready")
    pipe.recv()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        one.reduced(10_007, DType.FLOAT32, 1)
        error = "none"
    except Exception as failure:  # noqa: BLE001 - the test compares it
        error = f"{type(failure).__name__}: {failure}"
    pipe.send((error, one.left_over()))
