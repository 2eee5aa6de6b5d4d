"""Horovod's names for what BytePS calls push_pull, so that its scripts run after their import line is changed."""

from __future__ import annotations

import torch

from byteps_like.torch.compression.public import Compression
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.differentiable import push_pull, push_pull_inplace
from byteps_like.torch.ops.single import push_pull_async, push_pull_async_inplace


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: object = Compression.none,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> torch.Tensor:
    """`push_pull` in Horovod's order of arguments."""
    return push_pull(
        tensor, average, name, compression=compression, op=op, process_set=process_set,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> torch.Tensor:
    """`push_pull_inplace` in Horovod's order of arguments."""
    return push_pull_inplace(
        tensor, average, name, op=op, process_set=process_set,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> int:
    """`push_pull_async` in Horovod's order of arguments."""
    return push_pull_async(
        tensor, average, name, op=op, process_set=process_set,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> int:
    """`push_pull_async_inplace` in Horovod's order of arguments."""
    return push_pull_async_inplace(
        tensor, average, name, op=op, process_set=process_set,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def cross_size() -> int:
    """Number of hosts, if all have as many workers as this one."""
    return _runtime.size() // _runtime.local_size()


def cross_rank() -> int:
    """Number of this host, if all have as many workers as this one."""
    return _runtime.rank() // _runtime.local_size()


def is_homogeneous() -> bool:
    """Whether all hosts have equally many workers. Raises InvalidArgumentError for portable workers, who can't tell."""
    hosts = _runtime.current().scope(None).lane("hosts").hosts
    return len({hosts.count(host) for host in hosts}) == 1


def _not_built(verbose: bool = False) -> bool:  # noqa: ARG001 - Horovod's
    """False: nothing here stands on MPI, NCCL or gloo."""
    return False


mpi_built = mpi_enabled = mpi_threads_supported = nccl_built = gloo_built = gloo_enabled = _not_built
cuda_built = rocm_built = ccl_built = ddl_built = _not_built
