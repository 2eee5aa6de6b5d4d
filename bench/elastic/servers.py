"""What it costs that a server joins an elastic job whose servers keep values.

    python -m bench.elastic.servers                                  (root; 4 workers, 2 servers and 1 more on a lab)
    python -m bench.elastic.servers --hosts 4 --servers 3 --rate 400mbit --megabytes 8

All push and pull a store in rounds, and commit after each. Then one more server comes, on a host of its own, and gets
its part of the values and of their updates' states from the others. Prints the longest round, in which the next world
forms, the time that the part alone would take on the link, what servers have moved between them, by their own
counters, as a multiple of the part, and how far from even the parts are afterwards. A line goes to out/servers.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.elastic.copies import TELLING, servers
from bench.processes import again
from bench.report import OUT, print_table, write_json_lines

BEFORE, AFTER = 8, 5
"""Rounds."""
TIMEOUT = 120.0
"""Seconds for a job."""
JOB = ("SCHEDULER", "SECRET", "SECRET_FILE", "JOB", "ELASTIC", "MIN_WORKERS", "MAX_WORKERS", "NUM_SERVERS", "LINK_GBPS")
"""Settings by which a server finds the job."""
Found = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4, help="with a worker each")
    parser.add_argument("--servers", type=int, default=2, help="on a host each, before one more comes")
    parser.add_argument("--rate", default="1gbit", help="of the hosts' links")
    parser.add_argument("--megabytes", type=float, default=16, help="of the values, whose state is as large")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    known = arguments()
    if known.worker is not None:
        work(known)
        return
    turns = [run(known) for _ in range(known.turns)]
    names = ("round", "longest", "link", "moved", "uneven")
    found = {name: statistics.median(turn[name] for turn in turns) for name in names}
    rows = [
        ("a round", f"{found['round']:.3f} s"),
        ("the longest, with the next world", f"{found['longest']:.3f} s"),
        ("its part on a link", f"{found['link']:.3f} s"),
        ("moved / its part (target 1.10)", f"{found['moved']:.3f}"),
        ("from even (target 10 %)", f"{found['uneven']:.1%}"),
    ]
    title = f"{known.megabytes:g} MB with momentum, {known.hosts} workers, {known.servers} servers and 1 more, "
    print_table(title + known.rate, ("what", "median"), rows)
    write_json_lines(OUT / "servers.jsonl", vars(known), turns)


def run(known: argparse.Namespace) -> Found:
    """One job."""
    from byteps_like.launch.elastic.crew import ElasticOptions
    from byteps_like.launch.fleet import Fleet
    from byteps_like.launch.lab.hosts import Lab
    from byteps_like.launch.lab.job import run_in_lab
    from byteps_like.launch.lab.network import parse_rate
    from byteps_like.launch.options import RunOptions

    elastic = ElasticOptions(min_workers=known.hosts, max_workers=known.hosts)
    with (
        tempfile.TemporaryDirectory(prefix="servers-") as folder,
        Lab(known.hosts + known.servers + 1, rate=known.rate) as lab,
    ):
        come = threading.Thread(target=start_server, args=(lab.hosts[-1], Path(folder)), daemon=True)
        come.start()
        options = RunOptions(
            again("--worker", folder), known.hosts, known.servers, environment=elastic.environment(), elastic=elastic,
            timeout=TIMEOUT, quiet=True,
        )  # fmt: skip
        fleet = Fleet(tuple(range(known.hosts, known.hosts + known.servers)), "behind the workers")
        if code := run_in_lab(lab, options, fleet=fleet):
            sys.exit(code)
        seen = json.loads((Path(folder) / "seen").read_text())
    part = 2 * known.megabytes * 1e6 / (known.servers + 1)
    each = [after - before for before, after in pairwise(seen["ends"])]
    usual = statistics.median(each)
    loads = seen["loads"]
    return {
        "round": usual,
        "longest": max(each),
        "link": part / (parse_rate(known.rate) / 8),
        "moved": seen["moved"] / part,
        "uneven": max(abs(load * len(loads) / sum(loads) - 1) for load in loads),
    }


def start_server(host: Any, folder: Path) -> None:
    """One more, once the workers have told where their job is."""
    while not (folder / "go").exists():
        time.sleep(0.01)
    settings = json.loads((folder / "go").read_text())
    host.popen([sys.executable, "-m", "byteps_like", "server"], env=settings)


def work(known: argparse.Namespace) -> None:
    import numpy as np

    import byteps_like.torch as bps

    bps.init()
    value = np.zeros(int(known.megabytes * 1e6) // 4, np.float32)
    out, ends = np.empty_like(value), list[float]()
    store = bps.Store("values", {"w": value}, consistency="bsp", update="momentum:lr=0.1", replicas=1)

    @bps.elastic.run
    def rounds(state: Any) -> None:
        grown = len(loads()) > known.servers
        for _ in range(AFTER if grown else 1 << 20):
            store.push_pull("w", value, out).wait()
            ends.append(time.perf_counter())
            state.round += 1
            if state.round == BEFORE and bps.rank() == 0:
                publish(
                    known.worker / "go", {f"BYTEPS_LIKE_{name}": os.environ.get(f"BYTEPS_LIKE_{name}") for name in JOB}
                )
            state.commit()

    def loads() -> list[int]:
        """Bytes of the values, by server."""
        found: dict[int, int] = {}
        for part in store._open["w"].kept.declared.partitions:
            found[part.server] = found.get(part.server, 0) + part.nbytes
        return list(found.values())

    rounds(bps.elastic.TorchState(round=0, values=store))
    if bps.rank() == 0:
        time.sleep(TELLING)
        moved = sum(server.stats["moved"] for server in servers())
        publish(known.worker / "seen", {"ends": ends[2:], "loads": loads(), "moved": moved})
    bps.shutdown()


def publish(path: Path, what: Found) -> None:
    """Writes it at once."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({name: one for name, one in what.items() if one is not None}))
    part.rename(path)


if __name__ == "__main__":
    main()
