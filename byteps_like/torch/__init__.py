"""BytePS's and Horovod's interface: `import byteps_like.torch as bps`.

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

After a failure every call that needs the job raises the job's error, until `shutdown()` and `init()`.
"""

from byteps_like.errors import (
    BytePSLikeError,
    CapacityError,
    ConfigError,
    CorruptError,
    DeadlineError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    RefusedError,
    ShutdownError,
    StalledError,
    SystemCallError,
)
from byteps_like.torch.compression import Compression
from byteps_like.torch.differentiable import broadcast, broadcast_, push_pull, push_pull_inplace
from byteps_like.torch.handles import poll, synchronize
from byteps_like.torch.objects import allgather_object, broadcast_object
from byteps_like.torch.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    broadcast_async,
    broadcast_async_,
    declare,
    push_pull_async,
    push_pull_async_inplace,
)
from byteps_like.torch.optimizer import DistributedOptimizer
from byteps_like.torch.parameters import broadcast_optimizer_state, broadcast_parameters
from byteps_like.torch.runtime import (
    barrier,
    init,
    initialized,
    is_initialized,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Adasum",
    "Average",
    "BytePSLikeError",
    "CapacityError",
    "Compression",
    "ConfigError",
    "CorruptError",
    "DeadlineError",
    "DistributedOptimizer",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "Product",
    "RefusedError",
    "ShutdownError",
    "StalledError",
    "Sum",
    "SystemCallError",
    "allgather_object",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "declare",
    "init",
    "initialized",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
