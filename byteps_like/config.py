"""Every setting of a process, in one frozen dataclass: argument > environment > default.

The environment is read here and nowhere else; C++ reads none of it.
`python -m byteps_like.config` prints docs/reference/config.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, get_type_hints

from byteps_like.config_clock import FailureClock, check_clock
from byteps_like.config_environment import PREFIX, aliases_of, nearest, read_environment, settings_in
from byteps_like.config_values import LARGEST_PARTITION, SMALLEST_PARTITION, parse
from byteps_like.errors import ConfigError

_ROLES = ("worker", "server", "scheduler")
_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def _setting(default: Any, doc: str, *, job_wide: bool = False, secret: bool = False, told: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"doc": doc, "job_wide": job_wide, "told": told})


@dataclass(frozen=True)
class Config:
    """Settings of one process. Sizes are in bytes, times in seconds. Raises ConfigError for an invalid value."""

    job: str = _setting("default", "Name of the job; a scheduler serves one job and refuses members of other jobs.")
    role: str = _setting("worker", "Role of this process: worker, server or scheduler.")
    scheduler: str = _setting(
        "",
        "Address host:port of the job's scheduler; with several schedulers, of which one rules, those of all,"
        " separated by commas; empty: there is no scheduler outside this process.",
    )
    scheduler_state: str = _setting(
        "",
        "Where the scheduler keeps what it decides, so that the next one goes on from it: a folder on a local disk, or"
        " etcd://host:port[,host:port...][/prefix] (docs/how-to/survive-losses.md); empty: the job ends with its"
        " scheduler.",
    )
    secret: str = _setting("", "Secret of the job; never given on a command line. Overrides secret_file.", secret=True)
    secret_file: str = _setting("", "File that contains the job's secret, readable only by its owner.")
    rank: int = _setting(-1, "Global rank of this worker or server; -1: the scheduler assigns it.", told=True)
    world_size: int = _setting(1, "Number of workers in the job.")
    local_rank: int = _setting(-1, "Rank among the workers of this host; -1: detected when the world forms.")
    local_size: int = _setting(0, "Number of workers on this host; 0: detected when the world forms.")
    num_servers: int = _setting(
        -1,
        "Number of servers; 0: workers reduce among themselves; -1: one server, or none for a world of one. Of an"
        " elastic job: of its first world.",
    )
    force_distributed: bool = _setting(False, "Use servers even in a world of one worker.")
    enable_async: bool = _setting(
        False, "Let DistributedOptimizer train asynchronously where its `consistency` isn't given, as BytePS does."
    )
    host: str = _setting(
        "", "Address at which peers reach this process; empty: that of `interface`, or of the route to the scheduler."
    )
    interface: str = _setting("", "Network interface whose address is used for an empty `host`.")
    rack: str = _setting(
        "",
        "Rack of this worker, or whose workers this server sums for, as an aggregator, before other servers do; empty:"
        " none (docs/how-to/racks.md).",
        told=True,
    )
    link_gbps: float = _setting(
        0.0, "Rate in Gb/s of this host's network card per direction, used to weight servers; 0: as the kernel reports."
    )
    replan: bool = _setting(
        False, "Let the scheduler change the weights of servers when network cards are slower or faster than declared."
    )
    port: int = _setting(0, "First TCP port on which a server listens; 0: any free port.")
    rendezvous_host: str = _setting(
        "", "Host of rank 0 (MASTER_ADDR), where ranks meet if no scheduler is set; rank 0 then runs one."
    )
    rendezvous_port: int = _setting(0, "Port of the store (MASTER_PORT) through which they meet, run by rank 0.")
    rendezvous_store: bool = _setting(
        False, "Whether torchrun's agent runs the store at `rendezvous_port`, instead of rank 0."
    )
    rendezvous_restart: int = _setting(0, "Number of times that torchrun has restarted the workers.")
    default_backend: str = _setting(
        "",
        "Devices, such as cpu or cpu,cuda, for which init_process_group() and init_device_mesh() use 'byteps' if a"
        " script names no backend.",
    )
    partition_bytes: int = _setting(
        4 << 20,
        "Largest part of a tensor that is scheduled as a unit. If this says nothing else, 1 MB in jobs on one host.",
        job_wide=True,
    )
    segment_bytes: int = _setting(
        128 << 10, "Largest single write to a link; more urgent data can overtake after each write.", job_wide=True
    )
    credit_bytes: int = _setting(1 << 20, "Bytes that a link may push ahead of its results.")
    kernel_queue_bytes: int = _setting(
        64 << 10, "Most unsent bytes in the kernel's queue of a TCP link, where priorities have no effect; 0: no limit."
    )
    codec_threads: int = _setting(
        1, "Number of threads with which a worker encodes and decodes partitions for servers."
    )
    server_imports: str = _setting(
        "",
        "Modules, separated by commas, that servers import: their functions can be updates of stores, or be called on"
        " values (docs/how-to/server-functions.md).",
    )
    shards: int = _setting(0, "Number of threads of a server; 0: by the number of cores.")
    server_memory_limit: int = _setting(0, "Most memory that a server may use; 0: half of the host's memory.")
    failure_timeout: float = _setting(
        10.0,
        "Time after which members are given up, 1 to 600 s; if it is set, and in elastic jobs, heartbeat_interval and"
        " peer_grace are 1/20 of it, stall_warning half of it, join_timeout 6 and stall_timeout 12 times as long,"
        " unless they are set themselves (docs/explanation/elasticity.md).",
        job_wide=True,
    )
    stall_warning: float = _setting(
        5.0, "Wait of a round after which a warning names the missing ranks.", job_wide=True
    )
    stall_timeout: float = _setting(
        120.0, "Wait of a round after which the job fails with StalledError.", job_wide=True
    )
    join_timeout: float = _setting(60.0, "Time that a member waits for the world to form.")
    elastic: bool = _setting(
        False,
        "Whether workers may come and go while the job runs (docs/how-to/elastic.md); otherwise a loss ends it.",
        job_wide=True,
    )
    min_workers: int = _setting(
        1, "Fewest workers with which an elastic job goes on; with fewer, they wait for others.", job_wide=True
    )
    max_workers: int = _setting(
        0, "Most workers of an elastic job; those beyond are hot spares. 0: world_size.", job_wide=True
    )
    step_period: float = _setting(
        0.0,
        "Length of time slots in which steps of DistributedOptimizer begin (`byteps-like plan shift`); 0: no slots.",
    )
    start_offset: float = _setting(0.0, "Start of each slot, in the epoch's time modulo `step_period`.")
    heartbeat_interval: float = _setting(1.0, "Time between heartbeats to the scheduler.")
    peer_grace: float = _setting(0.7, "Time that a member has to reconnect after its connection broke.")
    transport: str = _setting(
        "auto",
        "Transport of data links: auto (the best that both ends can use: shm within a host, then rdma, then tcp), the"
        " name of one, or a chaos://… template. docs/reference/protocol.md lists them.",
    )
    rdma: str = _setting(
        "auto", "RDMA between hosts: auto (if both ends support it), off, or require (raise an error without it)."
    )
    tls: str = _setting(
        "off",
        "Encryption of links between hosts and of calls to scheduler and servers, by TLS 1.3 with keys made of the"
        " secret: off or on (docs/explanation/security.md).",
        job_wide=True,
    )
    tls_cert: str = _setting(
        "",
        "PEM file with this process's certificate for calls to scheduler and servers, verified both ways; empty: one is"
        " made of the secret.",
    )
    tls_key: str = _setting("", "PEM file with the private key of `tls_cert`.")
    tls_ca: str = _setting("", "PEM file with the authorities that sign the certificates of this job's processes.")
    tls_rdma: str = _setting(
        "off", "RDMA with tls=on: off (links between hosts use TCP), or clear (RDMA is used, and not encrypted)."
    )
    rdma_devices: str = _setting(
        "", "RDMA devices to use, one rail each: mlx5_0,mlx5_1; empty: the device of `host`, else the first."
    )
    rdma_gid_index: int = _setting(-1, "Index of the port's GID, as in `show_gids`; -1: chosen by routes.")
    stream_waits: bool = _setting(
        False,
        "Whether streams of a GPU wait for gradients in place of the host. Only for programs that copy nothing between"
        " the device and memory that is not page-locked while gradients travel: such a copy would block for ever"
        " (docs/how-to/gpu.md).",
    )
    collective_algorithm: str = _setting(
        "", "Algorithms to force: ring, or all_reduce=ring,all_to_all=2dh; empty: chosen by size and layout."
    )
    tune: str = _setting(
        "off",
        "Tuning of how gradients are sent: off, on, or the path of a saved setting (docs/how-to/tuner.md).",
    )
    compression: str = _setting(
        "",
        "Default compression: a cast, a codec, auto, or rules 'embed* -> topk; * -> thc4'; empty: none.",
    )
    min_compress_bytes: int = _setting(
        64 << 10, "Smallest parameter, in bytes of float32, that is compressed without a rule that names it."
    )
    local_shares: str = _setting(
        "off",
        "Gradients on GPUs: off (each rank sends all of its gradients); auto or ipc: the ranks of a host reduce by CUDA"
        " IPC first, then each sends an equal share. auto does so only if IPC is available.",
        job_wide=True,
    )
    compression_check: str = _setting(
        "auto",
        "Compares the time of steps with and without codecs, and turns slower codecs off: auto (only codecs chosen by"
        " compression=auto), on (all) or off.",
        job_wide=True,
    )
    compression_monitor: int = _setting(
        50,
        "Rounds between checks of codec errors; gradients with large errors are then sent uncompressed; 0: no checks.",
        job_wide=True,
    )
    collective_table: str = _setting("", "File written by `byteps-like tune collectives`; empty: none.")
    door: bool = _setting(True, "Whether servers also accept workers without the native core, over ZeroMQ.")
    one_port: bool = _setting(
        False,
        "Whether a server has one TCP port, `port`, for links, calls, the door and metrics, so that a firewall has to"
        " open no more (docs/how-to/one-port.md).",
    )
    metrics_port: int = _setting(
        0, "Port of a server's Prometheus metrics; 0: none. With one_port any other number: they are at that port."
    )
    worker_metrics_port: int = _setting(
        0, "Port of a worker's Prometheus metrics, to which its local rank is added; 0: none."
    )
    metrics_host: str = _setting(
        "127.0.0.1",
        "Address on which metrics are served, without authentication; 0.0.0.0 or ::: all addresses of the host.",
    )
    trace: str = _setting("", "Directory or .json file for a timeline of all ranks and servers; empty: none.")
    trace_steps: str = _setting(
        "", "Steps to record: 10:19, or the number of first steps; empty: all, up to the size limit."
    )
    trace_root: str = _setting(
        "",
        "Additional directory below which timelines may be written on request of other members or of `byteps-like"
        " timeline record`; trace, the working and the temporary directory are always allowed.",
    )
    log_level: str = _setting("WARNING", "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL.")
    explicit: frozenset[str] = field(default=frozenset(), repr=False, compare=False, metadata={"internal": True})
    """Names of the fields that an argument or the environment has set."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", self.log_level.upper())
        self._follow_clock()
        _check_choice("role", self.role, _ROLES)
        _check_choice("log_level", self.log_level, _LOG_LEVELS)
        _check_choice("compression_check", self.compression_check, ("auto", "on", "off"))
        _check_choice("local_shares", self.local_shares, ("off", "auto", "ipc"))
        _check_choice("rdma", self.rdma, ("auto", "off", "require"))
        _check_choice("tls", self.tls, ("off", "on"))
        _check_choice("tls_rdma", self.tls_rdma, ("off", "clear"))
        _check_certificates(self)
        _check_ranges(self)
        _check_elastic(self)
        if self.scheduler:
            split_address("scheduler", self.scheduler)

    def _follow_clock(self) -> None:
        """What nobody has set follows from `failure_timeout`, where that counts."""
        defaults = {item.name: item.default for item in fields(self)}
        timed = FailureClock(self.failure_timeout).settings()
        given = {name for name in ("failure_timeout", *timed)
                 if name in self.explicit or getattr(self, name) != defaults[name]}  # fmt: skip
        if self.elastic or "failure_timeout" in given:
            for name in timed.keys() - given:
                object.__setattr__(self, name, timed[name])
        check_clock({name: getattr(self, name) for name in ("failure_timeout", *timed)}, given)

    @property
    def clock(self) -> FailureClock:
        """What else follows from `failure_timeout`."""
        return FailureClock(self.failure_timeout)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> Config:
        """The configuration of this process: `arguments` (None means not given) over `environ` over the defaults.

        Raises ConfigError for an unknown name (naming the nearest known one), a malformed value or a contradiction.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        types = _types()
        for name in given:
            if name not in types:
                raise ConfigError(f"unknown setting {name!r}{nearest(name, types)}")
        values: dict[str, Any] = {}
        found = read_environment(os.environ if environ is None else environ, tuple(types), given.get("role", ""))
        for name, (source, text) in found.items():
            values[name] = parse(source, text, types[name])
        for name, value in given.items():
            values[name] = parse(name, value, types[name]) if isinstance(value, str) else value
        return cls(**values, explicit=frozenset(values))

    @classmethod
    def of_meeting(cls, **arguments: Any) -> Config:
        """What `from_env` finds of the settings that say where ranks meet, whatever is wrong with others.

        Raises ConfigError.
        """
        return cls.partly_from_env(_MEETING, None, **arguments)

    @classmethod
    def partly_from_env(
        cls, names: tuple[str, ...], environ: Mapping[str, str] | None = None, **arguments: Any
    ) -> Config:
        """`from_env` of the settings `names`; nothing else in the environment is looked at. Raises ConfigError."""
        given = {name: value for name, value in arguments.items() if name in names and value is not None}
        types = _types()
        found = settings_in(os.environ if environ is None else environ, names)
        return cls(**{name: parse(source, text, types[name]) for name, (source, text) in found.items()} | given)

    @property
    def servers(self) -> int:
        """Number of servers of the job, with the default for `num_servers` worked out."""
        if self.num_servers >= 0:
            return self.num_servers
        return 1 if self.world_size > 1 or self.force_distributed else 0

    @property
    def schedulers(self) -> tuple[str, ...]:
        """Addresses of the job's schedulers, of which one rules."""
        return tuple(address.strip() for address in self.scheduler.split(","))

    @property
    def is_alone(self) -> bool:
        """Whether this is a world of one that needs no other process, and that nobody can join."""
        return self.servers == 0 and self.world_size == 1 and not (self.elastic and self.scheduler)

    def held_to(self, settings: Mapping[str, str]) -> Config:
        """With the job's settings as the scheduler has them, whatever was the default here."""
        known = {name: value for name, value in settings.items() if name in self.job_settings()}
        types = _types()
        return replace(self, **{name: parse(name, value, types[name]) for name, value in known.items()})

    def told(self) -> dict[str, Any]:
        """What the scheduler is told of this process as fields of `Member` of the same names."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.metadata.get("told")}

    def job_settings(self, *, explicit_only: bool = False) -> dict[str, str]:
        """The settings in which all members of a job must agree, as text; with `explicit_only`, those somebody set."""
        names = (item.name for item in fields(self) if item.metadata.get("job_wide"))
        return {name: str(getattr(self, name)) for name in names if not explicit_only or name in self.explicit}


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises ConfigError, calling the setting `name`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{name}={address!r} is not host:port")
    return host.strip("[]"), int(port)


def config_table() -> str:
    """The settings as a Markdown table: name, type, default, environment names, meaning."""
    rows = ["| setting | type | default | environment | meaning |", "|---|---|---|---|---|"]
    types = _types()
    for item in _settings():
        names = ", ".join(f"`{name}`" for name in environment_names(item.name))
        default = f"`{item.default!r}`"
        meaning = item.metadata["doc"] + (" Must be equal in the whole job." if item.metadata["job_wide"] else "")
        rows.append(f"| `{item.name}` | {types[item.name].__name__} | {default} | {names} | {meaning} |")
    return "\n".join(rows) + "\n"


def environment_names(name: str) -> tuple[str, ...]:
    """The variables that set `name`, in the order in which they count."""
    return (PREFIX + name.upper(), *aliases_of(name))


def _settings() -> list[Field[Any]]:
    return [item for item in fields(Config) if not item.metadata.get("internal")]


def _types() -> dict[str, type]:
    hints = get_type_hints(Config)
    return {item.name: hints[item.name] for item in _settings() if item.default is not MISSING}


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is none of {', '.join(choices)}{nearest(value, choices)}")


def _check_certificates(config: Config) -> None:
    files = {name: getattr(config, name) for name in ("tls_cert", "tls_key", "tls_ca")}
    given = [name for name, path in files.items() if path]
    if not given:
        return
    if len(given) < len(files):
        lacking = ", ".join(name for name, path in files.items() if not path)
        raise ConfigError(f"{', '.join(given)} without {lacking}: give all three, or none to have them made")
    if config.tls == "off":
        raise ConfigError(f"{', '.join(given)} with tls='off': set BYTEPS_LIKE_TLS=on, or drop them")


def _check_elastic(config: Config) -> None:
    most = config.max_workers
    if not config.elastic:
        if given := [name for name in ("min_workers", "max_workers") if name in config.explicit]:
            raise ConfigError(f"{', '.join(given)} without elastic: set BYTEPS_LIKE_ELASTIC=1, or drop them")
    elif most and config.min_workers > most:
        raise ConfigError(f"min_workers={config.min_workers} is more than max_workers={most}")
    elif config.role == "worker" and not most and config.min_workers > config.world_size:
        raise ConfigError(
            f"min_workers={config.min_workers} is more than world_size={config.world_size}, which is the most with"
            " max_workers=0"
        )
    elif config.role == "worker" and most and config.world_size > most:
        raise ConfigError(f"world_size={config.world_size} is more than max_workers={most}")


def _check_ranges(config: Config) -> None:
    at_least = {
        "world_size": 1, "local_size": 0, "local_rank": -1, "num_servers": -1, "rank": -1,
        "partition_bytes": SMALLEST_PARTITION, "segment_bytes": 64, "credit_bytes": 1, "kernel_queue_bytes": 0,
        "codec_threads": 1, "shards": 0,
        "server_memory_limit": 0,
        "port": 0, "metrics_port": 0, "worker_metrics_port": 0, "min_compress_bytes": 0,
        "compression_monitor": 0, "link_gbps": 0, "step_period": 0, "start_offset": 0,
        "rdma_gid_index": -1, "min_workers": 1, "max_workers": 0,
    }  # fmt: skip
    for name, least in at_least.items():
        if getattr(config, name) < least:
            raise ConfigError(f"{name}={getattr(config, name)} must be at least {least}")
    for name, most in _AT_MOST.items():
        if getattr(config, name) > most:
            raise ConfigError(f"{name}={getattr(config, name)} must be at most {most}")
    for name in ("stall_warning", "stall_timeout", "join_timeout", "heartbeat_interval", "peer_grace"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name}={getattr(config, name)} must be more than 0 seconds")
    if config.role == "worker" and config.rank >= config.world_size:
        raise ConfigError(f"rank={config.rank} must be below world_size={config.world_size}")
    if config.local_size and config.local_rank >= config.local_size:
        raise ConfigError(f"local_rank={config.local_rank} must be below local_size={config.local_size}")


ENCRYPTION = ("tls", "tls_cert", "tls_key", "tls_ca")
"""What calls to the scheduler are encrypted by."""

_MEETING = (
    "job", "scheduler", "rank", "world_size", "num_servers", "force_distributed", "rendezvous_host", "rendezvous_port",
    "rendezvous_store", "rendezvous_restart", "join_timeout", "secret", "secret_file", "host", *ENCRYPTION,
)  # fmt: skip

_AT_MOST = {
    "partition_bytes": LARGEST_PARTITION, "segment_bytes": 16 << 20, "kernel_queue_bytes": 1 << 30,
    "rdma_gid_index": 255,
}  # fmt: skip

_PAGE = """# Settings

Every setting is a field of `byteps_like.config.Config`. An argument overrides the environment, which overrides
the default. If several variables of one setting are set, the first in its row applies. An unknown `BYTEPS_LIKE_*` name
is an error that suggests the nearest known one; BytePS names without a meaning here are ignored, and logged. Sizes are
in bytes and accept `KiB`, `MiB`, `GiB`; times are in seconds. This page is generated: `make docs`.

"""

if __name__ == "__main__":
    print(_PAGE + config_table(), end="")
