"""`import byteps_like.torch.cross_barrier as bps`: BytePS's module of that name, for scripts that import it."""

from byteps_like.torch.calls.handles import poll, synchronize
from byteps_like.torch.compression.public import Compression
from byteps_like.torch.factory import CrossBarrier
from byteps_like.torch.job.membership import init, shutdown
from byteps_like.torch.job.runtime import local_rank, local_size, rank, size
from byteps_like.torch.ops.single import push_pull_async_inplace as byteps_push_pull
from byteps_like.torch.optimizer.broadcasts import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
