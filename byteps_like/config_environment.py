"""Which environment variable sets what: our own names, BytePS's, torchrun's, and BytePS's that mean nothing here."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping

from byteps_like.config_values import parse
from byteps_like.errors import ConfigError

log = logging.getLogger(__name__)

PREFIX = "BYTEPS_LIKE_"

ALIASES: dict[str, tuple[str, ...]] = {
    "job": ("TORCHELASTIC_RUN_ID",),
    "role": ("DMLC_ROLE",),
    "scheduler": ("DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT",),
    "rank": ("BYTEPS_GLOBAL_RANK", "DMLC_WORKER_ID"),
    "world_size": ("BYTEPS_LIKE_SIZE", "DMLC_NUM_WORKER"),
    "local_rank": ("BYTEPS_LOCAL_RANK",),
    "local_size": ("BYTEPS_LOCAL_SIZE",),
    "num_servers": ("DMLC_NUM_SERVER",),
    "force_distributed": ("BYTEPS_FORCE_DISTRIBUTED",),
    "enable_async": ("BYTEPS_ENABLE_ASYNC",),
    "host": ("DMLC_NODE_HOST",),
    "interface": ("DMLC_INTERFACE",),
    "port": ("DMLC_PORT",),
    "rendezvous_host": ("MASTER_ADDR",),
    "rendezvous_port": ("MASTER_PORT",),
    "rendezvous_store": ("TORCHELASTIC_USE_AGENT_STORE",),
    "rendezvous_restart": ("TORCHELASTIC_RESTART_COUNT",),
    "partition_bytes": ("BYTEPS_PARTITION_BYTES",),
    "credit_bytes": ("BYTEPS_SCHEDULING_CREDIT",),
    "min_compress_bytes": ("BYTEPS_MIN_COMPRESS_BYTES",),
    "shards": ("BYTEPS_SERVER_ENGINE_THREAD",),
    "heartbeat_interval": ("PS_HEARTBEAT_INTERVAL",),
    "tls": ("BYTEPS_TLS",),
    "log_level": ("BYTEPS_LOG_LEVEL",),
}
"""Other names of a setting, first match wins. BytePS counts worker machines, so its ranks and sizes are converted."""

_PLACE = ("rank", "world_size", "local_rank", "local_size")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_LAUNCHERS = (
    _TORCH,  # torchrun, DeepSpeed, Accelerate, and scripts that set them by themselves, as torch's env:// wants them
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),  # srun; a batch script has no step
)
"""What launchers call a worker's place, each in the order of _PLACE. One launcher counts: the first that says both rank
and size. So what an outer one has left in the environment isn't mixed with what an inner one says."""

_IGNORED_NAMES = """
    DMLC_ENABLE_RDMA DMLC_ENABLE_UCX DMLC_NUM_CPU_DEV DMLC_NUM_GPU_DEV DMLC_NUM_PORTS DMLC_RANK DMLC_GROUP_SIZE
    DMLC_LOCAL DMLC_USE_KUBERNETES DMLC_LOCKLESS_QUEUE DMLC_POLLING_IN_NANOSECOND PS_RESEND PS_RESEND_TIMEOUT
    PS_DROP_MSG PS_HEARTBEAT_TIMEOUT PS_VERBOSE PS_KEY_LOG BYTEPS_ENABLE_IPC BYTEPS_IPC_COPY_NUM_THREADS
    BYTEPS_IPC_ENABLE_ASYNC_COPY BYTEPS_RDMA_START_DEPTH BYTEPS_RDMA_RX_DEPTH BYTEPS_RDMA_MAX_CONCURR_WR
    BYTEPS_ADDRESS_POOL_SIZE BYTEPS_PRINT_RDMA_LOG BYTEPS_ZMQ_MAX_SOCKET BYTEPS_ZMQ_NTHREADS
    BYTEPS_UCX_SHORT_THRESH BYTEPS_UCX_FORCE_REQ_ORDER BYTEPS_UCX_QUEUE_SENDS BYTEPS_UCX_ERRH_ENABLE
    BYTEPS_UCX_RECONNECT_TMO BYTEPS_SOCKET_PATH BYTEPS_ORDERED_HOSTS BYTEPS_NCCL_GROUP_SIZE BYTEPS_NCCL_NUM_RINGS
    BYTEPS_PCIE_SWITCH_SIZE BYTEPS_REDUCE_ROOTS BYTEPS_OMP_THREAD_PER_GPU BYTEPS_THREADPOOL_SIZE
    BYTEPS_KEY_HASH_FN BYTEPS_BUILT_IN_HASH_COEF BYTEPS_ENABLE_MIXED_MODE
    BYTEPS_MIXED_MODE_BOUND BYTEPS_SERVER_ENABLE_SCHEDULE BYTEPS_SERVER_ENGINE_BLOCKING
    BYTEPS_SERVER_DEBUG BYTEPS_SERVER_DEBUG_KEY BYTEPS_LOG_HIDE_TIME BYTEPS_DEBUG_SAMPLE_TENSOR BYTEPS_ENABLE_GDB
    BYTEPS_TELEMETRY_ON BYTEPS_TRACE_ON BYTEPS_TRACE_START_STEP BYTEPS_TRACE_END_STEP BYTEPS_TRACE_DIR
    BYTEPS_NUMA_ON BYTEPS_NUMA_DEFAULT_QUOTA BYTEPS_NUMA_ROOT_QUOTA BYTEPS_CPU_BLACKLIST
    BYTEPS_VISIBLE_CPU_CORES BYTEPS_MULTITHREADED_CPU
"""
IGNORED = frozenset(_IGNORED_NAMES.split())


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that asks for the known name nearest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_environment(
    environ: Mapping[str, str], settings: tuple[str, ...], role: str = ""
) -> dict[str, tuple[str, str]]:
    """Setting -> (variable, text) for all that is set; empty variables count as not set. `role` beats DMLC_ROLE.

    Raises ConfigError for an unknown BYTEPS_LIKE_* name, or one of BytePS's that asks for what isn't there. Other
    unknown names of BytePS's families are logged.
    """
    present = {name: text for name, text in environ.items() if text.strip()}
    if role or f"{PREFIX}ROLE" in present:
        present["DMLC_ROLE"] = role or present[f"{PREFIX}ROLE"]
    aliases = {alias for names in ALIASES.values() for entry in names for alias in entry.split(":")}
    own = {PREFIX + setting.upper() for setting in settings}
    for name in present:
        if name.startswith(PREFIX) and name not in own | aliases:
            raise ConfigError(f"unknown environment variable {name}{nearest(name, own)}")
    _log_ignored([name for name in present if _of_byteps(name) and name not in own | aliases], aliases)
    return settings_in(present, settings)


def settings_in(environ: Mapping[str, str], settings: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Setting -> (variable, text) for those of `settings` that are set. Other variables are not looked at."""
    present = {name: text for name, text in environ.items() if text.strip()}
    launched = _launched(present) if present.get("DMLC_ROLE", "worker") == "worker" else {}
    found = ((setting, _first(present, setting) or launched.get(setting)) for setting in settings)
    return {setting: value for setting, value in found if value is not None}


def aliases_of(setting: str) -> tuple[str, ...]:
    """Its other names, in the order in which they count."""
    launchers = [names[_PLACE.index(setting)] for names in _LAUNCHERS] if setting in _PLACE else []
    return (*ALIASES.get(setting, ()), *filter(None, launchers))


def _launched(present: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """This worker's place as its launcher says it."""
    said = [{setting: (name, present[name]) for setting, name in zip(_PLACE, names, strict=True) if name in present}
            for names in _LAUNCHERS]  # fmt: skip
    if "rank" not in said[0] and (rank := _rank_on_node(present)):
        said[0]["rank"] = ("NODE_RANK", rank)
    return next((found for found in said if found.keys() >= {"rank", "world_size"}), said[0])


def _rank_on_node(present: Mapping[str, str]) -> str:
    """Lightning's processes are told their node's rank and theirs within it."""
    if "NODE_RANK" not in present or "LOCAL_RANK" not in present:
        return ""
    node, size = _integer(present, "NODE_RANK", 0), _integer(present, "LOCAL_WORLD_SIZE", 0)
    return str(node * size + _integer(present, "LOCAL_RANK", 0)) if size or not node else ""


def _of_byteps(name: str) -> bool:
    return name in IGNORED or (name.startswith(("BYTEPS_", "DMLC_")) and not name.startswith(PREFIX))


def _log_ignored(names: list[str], aliases: set[str]) -> None:
    meaningless = sorted(name for name in names if name in IGNORED)
    if meaningless:
        log.debug("these settings of BytePS have no meaning here and are ignored: %s", ", ".join(meaningless))
    for name in sorted(set(names) - IGNORED):
        log.warning("ignoring unknown environment variable %s%s", name, nearest(name, aliases | IGNORED))


def _first(present: Mapping[str, str], setting: str) -> tuple[str, str] | None:
    for name in (PREFIX + setting.upper(), *ALIASES.get(setting, ())):
        if name in _CONVERTED and all(part in present for part in name.split(":")):
            text = _CONVERTED[name](present)
            if text is not None:
                return name, text
        elif name in present:
            return name, present[name]
    return None


def _integer(present: Mapping[str, str], name: str, default: int) -> int:
    return int(parse(name, present[name], int)) if name in present else default


def _scheduler(present: Mapping[str, str]) -> str:
    host = present["DMLC_PS_ROOT_URI"]
    return f"{f'[{host}]' if ':' in host else host}:{present['DMLC_PS_ROOT_PORT']}"


def _rank(present: Mapping[str, str]) -> str | None:
    """BytePS numbers worker machines: its n-th local rank on machine m is m * local_size + n. Servers have none."""
    if present.get("DMLC_ROLE", "worker") != "worker":
        return None
    machine = _integer(present, "DMLC_WORKER_ID", 0)
    return str(machine * _integer(present, "BYTEPS_LOCAL_SIZE", 1) + _integer(present, "BYTEPS_LOCAL_RANK", 0))


def _world_size(present: Mapping[str, str]) -> str | None:
    """BytePS counts worker machines; only a worker's environment says how many local ranks each of them has."""
    role = present.get("DMLC_ROLE", "worker")
    if role != "worker" and "BYTEPS_LOCAL_SIZE" not in present:
        return None
    return str(_integer(present, "DMLC_NUM_WORKER", 1) * _integer(present, "BYTEPS_LOCAL_SIZE", 1))


def _credit(present: Mapping[str, str]) -> str | None:
    """BytePS counts credit in partitions; 0 means no limit there, which here is what fits a link's memory."""
    partitions = _integer(present, "BYTEPS_SCHEDULING_CREDIT", 0)
    return str(partitions * _integer(present, "BYTEPS_PARTITION_BYTES", 4 << 20)) if partitions else None


def _heartbeat(present: Mapping[str, str]) -> str | None:
    """BytePS's 0 means off; ours is never off."""
    text = present["PS_HEARTBEAT_INTERVAL"]
    return None if text.strip() == "0" else text


_CONVERTED = {
    "DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT": _scheduler,
    "DMLC_WORKER_ID": _rank,
    "DMLC_NUM_WORKER": _world_size,
    "BYTEPS_SCHEDULING_CREDIT": _credit,
    "PS_HEARTBEAT_INTERVAL": _heartbeat,
}
