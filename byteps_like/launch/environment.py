"""The environment of a job's processes, and what the launcher chose in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from byteps_like.control.calls.leaving import WANTED
from byteps_like.launch.ending.sweep import MARKER

_OF_ONE_PROCESS = {
    "BYTEPS_LIKE_SECRET",
    "BYTEPS_LIKE_SIZE",
    "BYTEPS_LIKE_LOCAL_RANK",
    "BYTEPS_LIKE_LOCAL_SIZE",
}
"""Not handed down from the launcher's own environment, which may be that of an outer job."""

_QUEUES = "32"
"""Of a GPU, CUDA's most: streams that share one wait for each other, also where one of them waits for the network."""


@dataclass(frozen=True)
class JobShape:
    """What every process of a job is told."""

    job: str
    workers: int
    servers: int
    shards: int | None
    secret_file: Path
    scheduler: str = "127.0.0.1:0"
    scheduler_state: str = ""
    """Where the scheduler keeps what it decides; empty: nowhere, and the job ends with it."""
    elastic: bool = False
    """Workers come and go: they are given their ranks when they have joined."""


def cores() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_per_worker(workers: int) -> int:
    """Cores shared out among the workers, at least one each."""
    return max(1, cores() // workers)


def of_service(base: Mapping[str, str], shape: JobShape, role: str, rank: int) -> dict[str, str]:
    """For the scheduler or a server. The secret goes by file: what an outer job or the user had set is taken out."""
    environment = {name: value for name, value in base.items() if name not in _OF_ONE_PROCESS}
    environment |= {
        MARKER: str(shape.secret_file.parent),
        WANTED: "1",
        "BYTEPS_LIKE_SECRET_FILE": str(shape.secret_file),
        "BYTEPS_LIKE_ROLE": role,
        "BYTEPS_LIKE_RANK": str(rank),
        "BYTEPS_LIKE_JOB": shape.job,
        "BYTEPS_LIKE_SCHEDULER": shape.scheduler,
        "BYTEPS_LIKE_WORLD_SIZE": str(shape.workers),
        "BYTEPS_LIKE_NUM_SERVERS": str(shape.servers),
        "PYTHONUNBUFFERED": "1",
    }
    if role == "scheduler":
        environment["BYTEPS_LIKE_SCHEDULER_STATE"] = shape.scheduler_state
    if shape.shards is not None:
        environment["BYTEPS_LIKE_SHARDS"] = str(shape.shards)
    return environment


def of_worker(base: Mapping[str, str], shape: JobShape, rank: int, columns: int | None) -> dict[str, str]:
    """For worker `rank`, with as many queues of its GPU as CUDA can have; `columns` is the width that the prefix leaves
    for its progress bars."""
    environment = of_service(base, shape, "worker", rank)
    if shape.elastic:
        environment["BYTEPS_LIKE_RANK"] = "-1"
    else:
        environment |= {"BYTEPS_LIKE_LOCAL_RANK": str(rank), "BYTEPS_LIKE_LOCAL_SIZE": str(shape.workers)}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_worker(shape.workers)))
    environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", _QUEUES)
    if columns is not None:
        environment.setdefault("COLUMNS", str(max(20, columns)))
    return environment
