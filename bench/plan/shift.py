"""Two jobs that share a link of the lab: left alone, and shifted as `byteps-like plan shift` says.

    python -m bench.plan.shift --rate 200mbit --compute 0.5        (root: builds a lab of network namespaces)

Each job has two workers, one of them on the host that both share, and trains a layer that sleeps for `--compute`
seconds and whose gradients take as long on the link. One job runs by itself first; its step is what is planned with.
Then both run together, then both in their slots. Leaves out/shift.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import module
from byteps_like.launch.child import ChildPart
from byteps_like.launch.lab.hosts import INTERFACE, Lab
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job
from byteps_like.planner.shift.plan import Arc, PeriodicJob, ShiftPlan, plan_shifts

JOBS = "AB"
LEAD = 15.0  # seconds in which all processes have started
LEAST_STEPS = 13


@dataclass(frozen=True)
class OnLab:
    """Rank 0 of every job on host 0, rank 1 on a host of the job's own."""

    lab: Lab
    job: int

    def __call__(
        self, part: ChildPart, command: list[str], environment: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """The command and the environment that start `part` on its host."""
        host = self.lab.hosts[0 if part.role == "scheduler" or part.rank == 0 else 1 + self.job]
        own = {"BYTEPS_LIKE_HOST": host.address}
        if part.role == "scheduler":
            own["BYTEPS_LIKE_SCHEDULER"] = f"{host.address}:0"
        else:
            own |= {"BYTEPS_LIKE_LOCAL_RANK": "0", "BYTEPS_LIKE_LOCAL_SIZE": "1"}
        return host.command(command), {**environment, **INTERFACE, **own}


def train(folder: Path, compute: float, nbytes: int, steps: int, start: float) -> None:
    """One rank: leaves when each step began, had computed, and had ended."""
    import torch

    import byteps_like.torch as bps
    from bench.emulated import emulate
    from byteps_like.planner.workload import Layer, Workload

    torch.set_num_threads(1)
    bps.init()
    layer = Layer("all", (("weight", (nbytes // 4,)),), compute / 2, compute / 2)
    model = emulate(Workload("one layer", (layer,), 1, "steps"), 1.0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    bps.barrier()
    time.sleep(max(0.0, start - time.time()))
    times = []
    for _ in range(steps):
        begun = time.time()
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        computed = time.time()
        optimizer.step()
        times.append((begun, computed, time.time()))
    (folder / f"{os.environ['BENCH_JOB']}{bps.rank()}.json").write_text(json.dumps(times))
    bps.shutdown()


def run(
    arguments: argparse.Namespace, lab: Lab, jobs: str, steps: int, plan: ShiftPlan | None = None
) -> dict[str, Any]:
    """The times of rank 0 of each of `jobs`, which begin together."""
    with tempfile.TemporaryDirectory(prefix="shift-") as folder:
        place = [folder, str(arguments.compute), str(arguments.bytes), str(steps), str(time.time() + LEAD)]
        children = []
        for number, name in enumerate(jobs):
            environment = {"BENCH_JOB": name, "OMP_NUM_THREADS": "1"}
            if plan is not None:
                environment["BYTEPS_LIKE_STEP_PERIOD"] = str(plan.periods[name])
                environment["BYTEPS_LIKE_START_OFFSET"] = str(plan.shifts[name])
            command = module("bench.plan.shift", "--rank", *place)
            options = RunOptions(
                command, 2, 0, environment=environment, timeout=300.0, quiet=True, job=f"shift-{name}",
                place=OnLab(lab, number),
            )  # fmt: skip
            children.append(multiprocessing.get_context("fork").Process(target=lambda o=options: sys.exit(run_job(o))))
        for child in children:
            child.start()
        for child in children:
            child.join()
        if any(child.exitcode for child in children):
            sys.exit(1)
        return {name: json.loads((Path(folder) / f"{name}0.json").read_text()) for name in jobs}


def planned(arguments: argparse.Namespace, alone: list[list[float]], goodput: float) -> ShiftPlan:
    """Shifts for two jobs such as the one that ran by itself."""
    period = statistics.median(end - begun for begun, _, end in alone)
    sent = statistics.median(end - computed for _, computed, end in alone)
    arc = Arc(period - sent, sent, arguments.bytes * 8e-9 / sent)
    return plan_shifts([PeriodicJob(name, period, (arc,)) for name in JOBS], max(goodput * 8e-9, arc.gbps))


def step_times(times: list[list[float]]) -> list[float]:
    """From begin to begin; the first three make links."""
    begun = [step[0] for step in times[3:]]
    return [after - before for before, after in itertools.pairwise(begun)]


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, dict[str, list[float]]]]:
    """A row per job and way, and the times of all steps."""
    with Lab(3, rate=arguments.rate) as lab:
        if arguments.keep_window:
            for host in lab.hosts:
                host.run(["sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0"])
        goodput = max(lab.goodput() for _ in range(3))
        arguments.bytes = int(goodput * arguments.compute)
        alone = run(arguments, lab, "A", 16)
        plan = planned(arguments, alone["A"][3:], goodput)
        found = {
            "alone": alone,
            "together": run(arguments, lab, JOBS, arguments.steps * 2 // 5),
            "shifted": run(arguments, lab, JOBS, arguments.steps, plan),
        }
    times = {way: {name: step_times(steps) for name, steps in jobs.items()} for way, jobs in found.items()}
    rows = [
        {
            "bench": "shift", "way": way, "job": name, "steps": len(steps), "mean": statistics.mean(steps),
            "median": statistics.median(steps), "worst": max(steps), "bytes": arguments.bytes, "goodput": goodput,
            "period": plan.periods[name], "offset": plan.shifts[name], "score": plan.score,
        }
        for way, jobs in times.items() for name, steps in jobs.items()
    ]  # fmt: skip
    return rows, times


def show(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    together = {row["job"]: row["mean"] for row in rows if row["way"] == "together"}
    cells = [
        (row["way"], row["job"], str(row["steps"]), report.show_time(row["mean"]), report.show_time(row["median"]),
         report.show_time(row["worst"]), f"{together[row['job']] / row['mean']:.2f}" if row["job"] in together else "")
        for row in rows
    ]  # fmt: skip
    title = f"two jobs of {arguments.compute:g} s compute and as much communication on one link at {arguments.rate}"
    title += f"; slots of {rows[0]['period']:.3f} s"
    report.print_table(title, ("", "job", "steps", "mean step", "median", "worst", "faster than together"), cells)


def plot(path: Path, times: dict[str, dict[str, list[float]]]) -> None:
    """The time of each step, together and shifted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    axis = figure.subplots()
    for way, colour in {"together": "#d98032", "shifted": "#3b6ea5"}.items():
        for name, style in zip(JOBS, ("-", ":"), strict=True):
            axis.plot(times[way][name], style, color=colour, label=f"{way}, job {name}", linewidth=1.5)
    axis.axhline(statistics.median(times["alone"]["A"]), color="#1f2430", linewidth=0.8, linestyle="--", label="alone")
    axis.set(xlabel="step", ylabel="seconds", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, ncols=3, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        folder, compute, nbytes, steps, start = sys.argv[2:]
        return train(Path(folder), float(compute), int(nbytes), int(steps), float(start))
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", default="200mbit", help="speed of the links of the lab")
    parser.add_argument("--compute", type=float, default=0.5, help="seconds of a step, and of its communication")
    parser.add_argument("--steps", type=int, default=104, help="with shifts; without, two fifths of them")
    parser.add_argument(
        "--keep-window", action="store_true", help="TCP doesn't begin anew after each pause, as hosts are often set"
    )
    parser.add_argument("--json", type=Path, default=report.OUT / "shift.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "shift.png")
    arguments = parser.parse_args()
    if arguments.steps < LEAST_STEPS:
        parser.error(f"--steps {arguments.steps}: at least {LEAST_STEPS}, as the first of each kind don't count")
    rows, times = measure(arguments)
    show(arguments, rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    plot(arguments.plot, times)
    print(f"wrote {arguments.json} and {arguments.plot}")
    return None


if __name__ == "__main__":
    main()
