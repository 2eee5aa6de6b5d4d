"""What `byteps-like run` was asked to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from byteps_like.launch.attendant import Attendant
from byteps_like.launch.child import ChildPart
from byteps_like.launch.elastic.crew import ElasticOptions
from byteps_like.launch.replacing import MOST_DEATHS

Place = Callable[[ChildPart, list[str], dict[str, str]], tuple[list[str], dict[str, str]]]
"""Turns the command and the environment of a process into those that start it where it belongs."""


@dataclass(frozen=True)
class RunOptions:
    """One job on this host. Times in seconds.

    `settle` is how long the others may see a failure and fail by themselves before they get SIGTERM; `grace` is the
    time between SIGTERM and SIGKILL. `environment` is added to the launcher's own.
    """

    command: list[str]
    workers: int = 1
    servers: int = 1
    shards: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    prefix: bool = True
    quiet: bool = False
    timeout: float | None = None
    grace: float = 5.0
    settle: float = 1.0
    job: str = ""
    state: str = ""
    """Where the scheduler keeps what it decides: a folder or an etcd; empty: among the files of the job."""
    min_workers: int | None = None
    """Workers that must stay for the job to go on when others fail; None: all."""
    elastic: ElasticOptions | None = None
    """Of a job whose workers come and go; None: it has `workers`, from its beginning to its end."""
    most_deaths: int = MOST_DEATHS
    """Of the scheduler, of a server or in a worker's slot, within a minute; more, and no other takes the place. 0: any
    number."""
    columns: int | None = None
    """Width for the workers' progress bars; None leaves it to them."""
    pin: bool = True
    """Whether workers run on the cores beside their GPUs, where there are any."""
    place: Place | None = None
    """Where the processes run; None: on this host. Elsewhere the launcher can't reach the scheduler for its summary."""
    attendant: Attendant = field(default_factory=Attendant)

    @property
    def expendable(self) -> int:
        """How many workers may fail before the job ends; of an elastic one, all but those that finish."""
        if self.elastic is not None:
            return sys.maxsize
        return 0 if self.min_workers is None else self.workers - self.min_workers
