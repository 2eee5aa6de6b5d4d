"""64 ranks on one machine meet, make 20 sub-groups and reduce once: how long does it take?

    python -m bench.collectives.world [--ranks 64] [--groups 20] [--repeats 3]

Every rank is a process, forked when torch is imported, with a TCPStore client of its own. The time runs from the moment
at which all are there to the last rank's: world formed, sub-groups made, first all-reduce done.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import byteps_like.collectives.communicator
import byteps_like.torch.c10d.process_group
from bench.report import OUT, context, print_table, write_json_lines

TARGET_SECONDS = 5.0
LIMIT = 120.0  # seconds until a run is given up
PHASES = ("init", "groups", "first")


def rank_body(rank: int, size: int, port: Any, groups: int, pipe: Any, start: Any) -> None:
    """One rank: when it had ended each phase, and whether its sum is right."""
    torch.set_num_threads(1)
    start.wait(LIMIT)
    store = dist.TCPStore("127.0.0.1", port.value, is_master=False, wait_for_workers=False)
    start.wait(LIMIT)
    begun = time.monotonic()
    dist.init_process_group("byteps", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT))
    times = [time.monotonic()]
    for number in range(groups):
        dist.new_group(list(range(number % 4, size, 1 + number % 5)))
    times.append(time.monotonic())
    value = torch.ones(1)
    dist.all_reduce(value)
    times.append(time.monotonic())
    pipe.put((begun, *times, value.item() == size))
    start.wait(LIMIT)
    dist.destroy_process_group()


def measure(size: int, groups: int) -> dict[str, Any]:
    """Seconds from the first rank's start to the last rank's end of each phase."""
    forks = multiprocessing.get_context("fork")
    pipe, start, port = forks.SimpleQueue(), forks.Barrier(size + 1), forks.Value("i", 0)
    arguments = (size, port, groups, pipe, start)
    ranks = [forks.Process(target=rank_body, args=(rank, *arguments), daemon=True) for rank in range(size)]
    try:
        for process in ranks:
            process.start()
        # After the forks: a store has threads, whose locks a forked process may find taken for ever.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.value = store.port
        start.wait(LIMIT)
        start.wait(LIMIT)
        answers = [pipe.get() for _ in ranks]
        start.wait(LIMIT)
        for process in ranks:
            process.join(LIMIT)
    finally:
        for process in ranks:
            process.kill()
    assert all(answer[-1] for answer in answers), "a sum is wrong"
    begun = min(answer[0] for answer in answers)  # not by this process's clock: it may be the last to be woken
    ends = [max(answer[1 + phase] for answer in answers) - begun for phase in range(len(PHASES))]
    return {"ranks": size, "sub_groups": groups, **dict(zip(PHASES, ends, strict=True)), "target": TARGET_SECONDS}


def main() -> None:
    """Measures, shows a table and writes JSON lines; exit code 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = [measure(arguments.ranks, arguments.groups) for _ in range(arguments.repeats)]
    shown = [tuple(f"{row[name]:.2f} s" for name in PHASES) for row in rows]
    title = f"{arguments.ranks} ranks, {arguments.groups} sub-groups, target {TARGET_SECONDS:g} s"
    print_table(title, ("world formed", "groups made", "first sum"), shown)
    write_json_lines(OUT / "world.jsonl", context(vars(arguments)), rows)
    if sorted(row["first"] for row in rows)[len(rows) // 2] > TARGET_SECONDS:
        sys.exit(1)


if __name__ == "__main__":
    assert byteps_like.collectives.communicator
    assert byteps_like.torch.c10d.process_group
    main()
