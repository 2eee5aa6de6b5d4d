"""Who waits for whom when ranks are slow: every consistency, on a lab of shaped links, beside its simulation.

    python -m bench.consistency                         all (root): ten minutes
    python -m bench.consistency --cases ssp dssp        some
    python -m bench.consistency --cases training        digits and a GPT, without a lab
    python -m bench.consistency --cases halos           two sites below an upper group

4 workers (8 where a row says so) and 2 servers, each on its own host. Computing is a sleep, which a slow step makes 4
times as long: in S1 all steps of rank 3, in S2 any step with probability 0.1, the same ones in all ways; stalls are 10
steps long, as often as in S2. Portions: passes over 20 portions of a quarter of a step each, 10 times as long at rank
3. Pushes and pulls are real. Ways take turns in one job; each figure is the median of its turns' ratios, from the
smallest to the largest. *Predicted* is the same figure of a simulation: the policies, the same slow steps, and links of
the measured goodput. Training: test accuracy of digits in percent, held-out loss of the GPT in nats per character,
after equal numbers of samples: how far from bsp's, mean of the seeds.
Leaves out/consistency.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.consistency import sites, training
from bench.consistency.jobs import Settings, Turns, measured
from bench.consistency.rows import ROWS, Row, Target, around
from bench.consistency.ways import JOBS

TRAINING, HALOS = "training", "halos"
CASES = [*dict.fromkeys(row.case for row in ROWS), HALOS, TRAINING]


def figures(row: Row, found: Turns) -> list[float]:
    """Turn by turn."""
    return [row.value(turn) for turn in found]


def finished(case: str, what: str, values: Sequence[float], target: Target, predicted: float | None) -> dict[str, Any]:
    """What is kept of a row."""
    median = statistics.median(values)
    return {
        "bench": "consistency", "case": case, "what": what, "median": median, "values": list(values),
        "target": str(target), "met": target.met(median), "predicted": predicted,
    }  # fmt: skip


def of_job(job: str, rows: Sequence[Row], settings: Settings) -> list[dict[str, Any]]:
    """Runs it, with the ways that those rows need."""
    needed = {way for row in rows for way in row.ways}
    began = time.monotonic()
    found, predicted = measured(job, [way for way in JOBS[job].ways if way in needed], settings)
    print(f"{job}: {time.monotonic() - began:.0f} s", flush=True)
    return [
        finished(row.case, row.what, figures(row, found), row.target,
                 statistics.median(figures(row, predicted)) if row.simulated else None)
        for row in rows
    ]  # fmt: skip


def of_sites(settings: Settings) -> list[dict[str, Any]]:
    """One of two sites is slow."""
    rates, shares = sites.ratios(settings)
    what = f"every={sites.EVERY}: bytes to the upper group, of those of every version"
    return [
        finished(HALOS, "steps/s of a site beside a slow one, of those alone", rates, Target(0.95), None),
        finished(HALOS, what, shares, around(1 / sites.EVERY, 1e-6), None),
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    columns = ("what", "measured", "from", "to", "target", "", "predicted", "of predicted")
    cells = []
    for row in rows:
        values, expected = row["values"], row["predicted"]
        verdict = "" if not row["target"] else "ok" if row["met"] else "BELOW"
        numbers = [f"{value:.3f}" for value in (row["median"], min(values), max(values))]
        beside = ["", ""] if expected is None else [f"{expected:.3f}", f"{row['median'] / expected:.2f}"]
        cells.append((row["what"], *numbers, row["target"], verdict, *beside))
    report.print_table("consistency", columns, cells)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.consistency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="which rows; all by default")
    parser.add_argument("--turns", type=int, default=3, help="of each way, in turn with the others (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer steps in each turn (default 1)")
    parser.add_argument("--compute", type=float, default=25.0, help="milliseconds of a step (default 25)")
    parser.add_argument("--kb", type=int, default=64, help="of the model, small beside the links (default 64)")
    parser.add_argument("--rate", default="400mbit", help="of every host's link (default 400mbit)")
    parser.add_argument("--servers", type=int, default=2, help="on hosts of their own (default 2)")
    parser.add_argument("--seeds", type=int, default=3, help="of the trainings (default 3)")
    parser.add_argument("--steps", type=int, help="of bsp in a training (default 400): as many samples as these take")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of each job (default 600)")
    parser.add_argument("--json", type=Path, default=report.OUT / "consistency.jsonl", help="where rows are appended")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    settings = Settings(arguments.turns, arguments.compute / 1e3, arguments.kb << 10, arguments.rate, arguments.servers,
                        arguments.scale, arguments.timeout)  # fmt: skip
    for job in JOBS:
        if chosen := [row for row in ROWS if row.job == job and row.case in arguments.cases]:
            report_on(arguments, of_job(job, chosen, settings))
    if HALOS in arguments.cases:
        report_on(arguments, of_sites(settings))
    for task in training.TRAINED if TRAINING in arguments.cases else ():
        samples = (arguments.steps or task.steps) * task.samples
        found = training.differences(task, arguments.seeds, samples, arguments.timeout)
        what = f"{task.score} beside bsp's, {task.unit}"
        report_on(arguments, [
            finished(TRAINING, f"{task.task}: {name}: {what}", [more], task.target, None)
            for name, more in found.items()
        ])  # fmt: skip


def report_on(arguments: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """Shows and keeps a job's rows as soon as it has ended."""
    show(rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)


if __name__ == "__main__":
    main()
