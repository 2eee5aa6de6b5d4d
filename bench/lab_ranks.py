"""A benchmark as the ranks on the hosts of a lab, and what every rank found."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.processes import again
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions

TIMEOUT = 400.0  # seconds for the whole job

STORE_PORT = 29417  # beside the scheduler

Worker = Callable[[argparse.Namespace], dict[str, Any]]


def ranks_found(
    arguments: argparse.Namespace,
    worker: Worker,
    environment: Mapping[str, str] | None = None,
    per_host: int = 1,
    servers: int = 0,
) -> list[dict[str, Any]]:
    """What `worker` returns on each of `arguments.hosts` hosts with links of `arguments.rate`, rank by rank.

    `per_host`: ranks on each. `servers`: one on each of so many hosts more.

    The ranks run this benchmark again, with its own arguments and `--worker FOLDER`, and end in this call. A job that
    fails ends the process with its exit code.
    """
    if arguments.worker:
        found = json.dumps(worker(arguments))
        (Path(arguments.worker) / f"rank{os.environ['BYTEPS_LIKE_RANK']}.json").write_text(found)
        sys.exit()
    name = f"{Path(sys.argv[0]).stem}-"
    with tempfile.TemporaryDirectory(prefix=name) as folder, Lab(arguments.hosts + servers, rate=arguments.rate) as lab:
        command = again("--worker", folder)
        ranks = arguments.hosts * per_host
        options = RunOptions(command, ranks, servers, environment=environment or {}, timeout=TIMEOUT)
        if code := run_in_lab(lab, options, per_host):
            sys.exit(code)
        return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def join_process_group() -> None:
    """On a rank: byteps_like, and torch.distributed by it, over all ranks; one thread to compute with."""
    import torch
    import torch.distributed as dist

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    bps.init()
    master = os.environ["BYTEPS_LIKE_SCHEDULER"].rpartition(":")[0]
    store = dist.TCPStore(master, STORE_PORT, bps.size(), is_master=bps.rank() == 0)
    dist.init_process_group("byteps", store=store, rank=bps.rank(), world_size=bps.size())


def slowest(ranks: list[dict[str, Any]], way: str) -> list[float]:
    """Seconds of each turn of `way`, which lasts as long as on its slowest rank."""
    return [max(times) for times in zip(*(rank["times"][way] for rank in ranks), strict=True)]
