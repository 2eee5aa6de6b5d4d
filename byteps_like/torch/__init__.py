"""BytePS's and Horovod's interface: `import byteps_like.torch as bps`.

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

After a failure every call that needs the job raises the job's error, until `shutdown()` and `init()`.
"""

from typing import TYPE_CHECKING

from byteps_like.errors import (
    BytePSLikeError,
    CapacityError,
    ConfigError,
    CorruptError,
    DeadlineError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    OperationError,
    PeerLostError,
    RefusedError,
    ShutdownError,
    StalledError,
    SystemCallError,
    TooFewWorkersError,
)
from byteps_like.store.filters.significant import Significant
from byteps_like.store.gradient_coding import GradientCoding
from byteps_like.store.kv import KV
from byteps_like.store.store import Store
from byteps_like.store.tables.table import Table
from byteps_like.store.upper.upper import Upper
from byteps_like.torch import cross_barrier, elastic, parallel
from byteps_like.torch.batches.batch_shares import BatchShares
from byteps_like.torch.c10d import backend as _backend
from byteps_like.torch.c10d.backend import create_process_group, shrink_group, use_as_default
from byteps_like.torch.c10d.options import GroupOptions
from byteps_like.torch.calls.handles import poll, synchronize
from byteps_like.torch.calls.reductions import Adasum, Average, Max, Min, Product, Sum
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.compression.public import Compression
from byteps_like.torch.ddp.comm_hook import DDPHookState, ddp_hook
from byteps_like.torch.ddp.module import DistributedDataParallel
from byteps_like.torch.deferred.backward import DeferredBackward
from byteps_like.torch.elastic import HorovodInternalError, HostsUpdatedInterrupt
from byteps_like.torch.factory import AsyncOptimizer, CrossBarrier, DistributedOptimizer
from byteps_like.torch.fsdp.policy import compress_fsdp, ranks_per_host
from byteps_like.torch.horovod import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from byteps_like.torch.job.membership import barrier, init, join, resume, shutdown, stats, suspend
from byteps_like.torch.job.pacing import StepPacer
from byteps_like.torch.job.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from byteps_like.torch.job.runtime import (
    initialized,
    local_rank,
    local_size,
    rank,
    size,
)
from byteps_like.torch.job.runtime import initialized as is_initialized
from byteps_like.torch.job.tracing import start_timeline, stop_timeline, trace
from byteps_like.torch.low_comm.low_comm import AveragedWeights, LowComm
from byteps_like.torch.ops.differentiable import broadcast, broadcast_, push_pull, push_pull_inplace
from byteps_like.torch.ops.gather_api import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from byteps_like.torch.ops.grouped import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from byteps_like.torch.ops.objects import allgather_object, broadcast_object
from byteps_like.torch.ops.single import (
    broadcast_async,
    broadcast_async_,
    declare,
    push_pull_async,
    push_pull_async_inplace,
)
from byteps_like.torch.ops.single import push_pull_async_inplace as byteps_push_pull
from byteps_like.torch.ops.sync_batch_norm import SyncBatchNorm
from byteps_like.torch.optimizer.broadcasts import broadcast_optimizer_state, broadcast_parameters
from byteps_like.torch.optimizer.onebit_adam import OnebitAdam
from byteps_like.torch.pipeline.policy import compress_pipeline
from byteps_like.torch.shared import empty_shared
from byteps_like.torch.sparse.sums import sparse_allreduce_async
from byteps_like.torch.tables.embedding import Embedding, EmbeddingBag

if not TYPE_CHECKING:  # else every name would be taken to be here

    def __getattr__(name: str) -> object:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_backend.register()  # torch before 2.14 knows of no entry point

__all__ = [
    "KV",
    "Adasum",
    "AsyncOptimizer",
    "Average",
    "AveragedWeights",
    "BatchShares",
    "BytePSLikeError",
    "CapacityError",
    "Compress",
    "Compression",
    "ConfigError",
    "CorruptError",
    "CrossBarrier",
    "DDPHookState",
    "DeadlineError",
    "DeferredBackward",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Embedding",
    "EmbeddingBag",
    "GradientCoding",
    "GroupOptions",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "InvalidArgumentError",
    "LowComm",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "OnebitAdam",
    "OperationError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "RefusedError",
    "ShutdownError",
    "Significant",
    "StalledError",
    "StepPacer",
    "Store",
    "Sum",
    "SyncBatchNorm",
    "SystemCallError",
    "Table",
    "TooFewWorkersError",
    "Upper",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "ccl_built",
    "compress_fsdp",
    "compress_pipeline",
    "create_process_group",
    "cross_barrier",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "elastic",
    "empty_shared",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "initialized",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "parallel",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "ranks_per_host",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "resume",
    "rocm_built",
    "shrink_group",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "suspend",
    "synchronize",
    "trace",
    "use_as_default",
]
