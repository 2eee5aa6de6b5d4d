"""A worker in pure Python, NumPy and pyzmq: for hosts without the native core, notebooks and tools.

    import byteps_like.portable as bps
    bps.init(scheduler="10.0.0.1:7000", rank=3, world_size=4, secret_file="job.secret")
    mean = bps.push_pull(gradient, name="gradient")

It sums in one job with native workers, over the servers' portable doors.

Private: channel, connect, dealer, flow, handle, join, keeping, pump, row_numbers, session, store_calls, store_flow,
store_lane, table_lane, tables, transfer, worker.
"""

from byteps_like.portable.connect import connect
from byteps_like.portable.session import (
    barrier,
    broadcast,
    init,
    initialized,
    local_rank,
    local_size,
    push_pull,
    rank,
    shutdown,
    size,
    stats,
)
from byteps_like.store.filters.significant import Significant
from byteps_like.store.gradient_coding import GradientCoding
from byteps_like.store.kv import KV
from byteps_like.store.store import Store
from byteps_like.store.upper.upper import Upper

__all__ = [
    "KV",
    "GradientCoding",
    "Significant",
    "Store",
    "Upper",
    "barrier",
    "broadcast",
    "connect",
    "init",
    "initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "shutdown",
    "size",
    "stats",
]
