"""What copies of values that servers keep cost, and for how long nobody can read them when a server dies.

    python -m bench.elastic.copies                                         (root; 4 workers and 2 servers on a lab)
    python -m bench.elastic.copies --hosts 4 --servers 3 --rate 400mbit --megabytes 8 --consistency ssp:s=3

Every rank pushes and pulls two stores by turns, one on one server (`replicas=1`), one on two. How many bytes servers
send one another is from their own counters. In a second job, whose values are all on two servers, one server process is
killed while all go on. Prints medians, and lines to out/copies.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.processes import again
from bench.report import OUT, Spread, print_table, write_json_lines

COUNTED = 10
"""Rounds whose bytes are counted."""
TELLING = 1.5
"""Seconds in which servers tell the scheduler their counters."""
AROUND = 3.0
"""Seconds before a server is killed, and after it."""
TIMEOUT = 120.0
"""Seconds for a job."""
Found = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4, help="with a worker each")
    parser.add_argument("--servers", type=int, default=2, help="on a host each")
    parser.add_argument("--rate", default="1gbit", help="of the hosts' links")
    parser.add_argument("--megabytes", type=float, default=16, help="of the values")
    parser.add_argument("--consistency", default="bsp")
    parser.add_argument("--update", default="momentum:lr=0.1")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=5, help="of a turn")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=[costs.__name__, death.__name__], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    known = arguments()
    if known.worker is not None:
        work(known)
        return
    ranks, mourners = run(known, costs), run(known, death)
    seconds = {
        replicas: [max(turn) for turn in zip(*(rank["seconds"][replicas] for rank in ranks), strict=True)]
        for replicas in ("1", "2")
    }
    ratios = Spread.of([two / one for one, two in zip(seconds["1"], seconds["2"], strict=True)])
    pushed = known.hosts * COUNTED * known.megabytes * 1e6
    chain = ranks[0]["copied"] / pushed
    gaps = {kind: max(rank[kind] for rank in mourners) for kind in ("usual", "longest")}
    limit = f" (limit {1 / known.hosts:.3f})" if known.consistency == "bsp" else ""  # a round makes one change
    rows = [
        ("a round, replicas=1", f"{statistics.median(seconds['1']):.3f} s"),
        ("a round, replicas=2", f"{statistics.median(seconds['2']):.3f} s"),
        ("ratio", f"{ratios.median:.2f} ({ratios.low:.2f}-{ratios.high:.2f})"),
        ("from server to server, part of what is pushed", f"{chain:.3f}{limit}"),
        ("longest wait for a value when a server dies", f"{gaps['longest']:.2f} s (usually {gaps['usual']:.2f})"),
    ]
    title = f"{known.megabytes:g} MB, {known.consistency}, {known.hosts} workers, {known.servers} servers, {known.rate}"
    print_table(title, ("what", "median"), rows)
    row = {"ratio": ratios.median, "quartiles": [ratios.low, ratios.high], "chain": chain, **gaps, "seconds": seconds}
    write_json_lines(OUT / "copies.jsonl", vars(known), [row])


def run(known: argparse.Namespace, part: Callable[..., Found]) -> list[Found]:
    """What all ranks have found in a job, by rank."""
    from byteps_like.launch.elastic.crew import ElasticOptions
    from byteps_like.launch.lab.hosts import Lab
    from byteps_like.launch.lab.job import run_in_lab
    from byteps_like.launch.options import RunOptions

    elastic = ElasticOptions(min_workers=known.hosts, max_workers=known.hosts)
    with (
        tempfile.TemporaryDirectory(prefix="copies-") as folder,
        Lab(known.hosts + known.servers, rate=known.rate) as lab,
    ):
        command = again("--worker", folder, "--part", part.__name__)
        options = RunOptions(
            command, known.hosts, known.servers, environment=elastic.environment(), elastic=elastic, timeout=TIMEOUT,
            most_deaths=1,
        )  # fmt: skip
        if code := run_in_lab(lab, options):
            sys.exit(code)
        return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(known.hosts)]


def work(known: argparse.Namespace) -> None:
    import byteps_like.torch as bps

    bps.init()
    found = {costs.__name__: costs, death.__name__: death}[known.part](known, bps)
    bps.barrier()
    (known.worker / f"rank{bps.rank()}.json").write_text(json.dumps(found))
    bps.shutdown()


def store_of(known: argparse.Namespace, bps: Any, replicas: int) -> tuple[Any, Callable[[], None]]:
    """A store, and what pushes and pulls all of it once."""
    import numpy as np

    value = np.zeros(int(known.megabytes * 1e6) // 4, np.float32)
    out = np.empty_like(value)
    store = bps.Store(
        f"on {replicas}", {"w": value}, consistency=known.consistency, update=known.update, replicas=replicas
    )
    return store, lambda: store.push_pull("w", value, out).wait()


def costs(known: argparse.Namespace, bps: Any) -> Found:
    """Seconds of a round in each turn, and bytes that go to copies in `COUNTED` rounds."""
    calls = {str(replicas): store_of(known, bps, replicas)[1] for replicas in (1, 2)}

    def rounds(replicas: str, count: int) -> float:
        bps.barrier()
        began = time.perf_counter()
        for _ in range(count):
            calls[replicas]()
        return (time.perf_counter() - began) / count

    for replicas in calls:
        rounds(replicas, known.rounds)
    seconds: dict[str, list[float]] = {replicas: [] for replicas in calls}
    for _ in range(known.turns):
        for replicas in calls:
            seconds[replicas].append(rounds(replicas, known.rounds))
    return {"seconds": seconds, "copied": copied(bps, lambda: rounds("2", COUNTED))}


def death(known: argparse.Namespace, bps: Any) -> Found:
    """Seconds from the end of a round to that of the next, while a server is killed."""
    store, call = store_of(known, bps, 2)
    victim = servers()[-1].member.pid
    call()
    bps.barrier()
    if bps.rank() == 0:
        threading.Timer(AROUND, os.kill, (victim, signal.SIGKILL)).start()
    ends, last = [time.perf_counter()], time.perf_counter() + 2 * AROUND
    while ends[-1] < last:
        call()
        ends.append(time.perf_counter())
    store.finish()
    each = [after - before for before, after in pairwise(ends)]
    return {"usual": statistics.median(each), "longest": max(each)}


def copied(bps: Any, call: Any) -> float:
    """Bytes that go to copies meanwhile. All ranks call it."""
    time.sleep(TELLING)
    before = sum(server.stats["copied"] for server in servers())
    bps.barrier()
    call()
    bps.barrier()
    time.sleep(TELLING)
    return sum(server.stats["copied"] for server in servers()) - before


def servers() -> list[Any]:
    """As the scheduler knows them."""
    from byteps_like.config import Config
    from byteps_like.control.calls.client import query_status
    from byteps_like.control.types import MemberRole

    members = query_status(Config.from_env()).members
    return [one for one in members if one.member.role is MemberRole.SERVER and one.state == "running"]


if __name__ == "__main__":
    main()
