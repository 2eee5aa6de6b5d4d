"""A death and a join, drawn from the timeline of a job to which both happen.

    python -m bench.elastic.timelines --plot docs/images

Starts `byteps-like run` with three workers and two servers, kills a worker in the middle of its steps, and lets the
launcher put another one in its place. What each process did is from its part of the timeline; when it was killed, and
when worlds began, from what this program and the workers have noted, on the same clock. Needs Matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import module
from byteps_like.timeline.merge import RECORD, ProcessTrace, read_part
from byteps_like.timeline.parts import SUFFIX
from byteps_like.timeline.records import RecordKind

BEFORE = 30
"""Steps of each worker before one is killed."""
DEADLINE_SECONDS = 120
COLOURS = {"step": "#b8d4ea", "wait": "#d9534f", "sum": "#5b8c5a"}
MEANINGS = {"step": "step", "wait": "waits for the sum", "sum": "sums"}
Bar = tuple[str, int, int]
"""Kind, begin and duration in ns."""


@dataclass
class Recorded:
    """One job."""

    killed: int = 0
    killed_at: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    bars: dict[int, list[Bar]] = field(default_factory=dict)
    """Of each process by its id."""

    def of(self, pid: int) -> list[dict[str, Any]]:
        """What a worker has said."""
        return [event for event in self.events if event["pid"] == pid]

    def worlds(self, number: int) -> list[dict[str, Any]]:
        """How each of its workers began the world of this number, by rank."""
        found = [event for event in self.events if event["event"] == "world" and event["number"] == number]
        return sorted(found, key=lambda event: event["rank"])


def record(folder: Path) -> Recorded:
    """Runs the job. Raises CalledProcessError, with its output, if it fails."""
    job = Recorded()
    command = [sys.executable, "-m", "byteps_like", "run", "-q", "--no-prefix", "-n", "3", "-s", "2"]
    command += ["--max-workers", "3", "--timeout", str(DEADLINE_SECONDS), "--"]
    command += module("bench.elastic.timeline_worker")
    environment = os.environ | {"BYTEPS_LIKE_TRACE": str(folder), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                job.events.append(json.loads(line))
                _kill_one(job)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    for path in folder.glob(f"*{SUFFIX}"):
        part = read_part(path)
        pid = int(path.stem.rpartition("-")[2])
        job.bars[pid] = [bar for whole in _bars(part) for bar in _without_changes(whole, job.of(pid))]
    return job


def _kill_one(job: Recorded) -> None:
    """The last rank, once it has made some steps."""
    first = job.worlds(1)
    if job.killed or len(first) < 3:
        return
    victim = first[-1]["pid"]
    if sum(event["event"] == "step" and event["pid"] == victim for event in job.events) >= BEFORE:
        job.killed, job.killed_at = victim, time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)


def _bars(part: ProcessTrace) -> list[Bar]:
    found: list[Bar] = [("step", begin, length) for kind, _, _, begin, length, _ in part.events if kind == "step"]
    kinds = {RecordKind.WAIT: "wait", RecordKind.SUMMED: "sum"}
    for chunk in part.records:
        for row in chunk.tolist():
            one = dict(zip(RECORD.names or (), row, strict=True))
            if one["kind"] in kinds:
                found.append((kinds[RecordKind(one["kind"])], one["begin"], one["duration"]))
    return found


def _without_changes(bar: Bar, said: Sequence[dict[str, Any]]) -> list[Bar]:
    """A step that is recorded from the last one's end, without what lies between two worlds."""
    kind, begin, length = bar
    began = next(
        (event["at"] for event in said if event["event"] == "world" and begin < event["at"] < begin + length), 0
    )
    if kind != "step" or not began:
        return [bar]
    return [(kind, began, begin + length - began)]


@dataclass(frozen=True)
class Picture:
    """A window of the job."""

    title: str
    begin: int
    end: int
    marks: Sequence[tuple[int, str]]
    """What happened when."""
    rows: Sequence[tuple[str, int]]
    """Of processes: name and id, from above."""


def pictures(job: Recorded) -> dict[str, Picture]:
    """By the names of their files."""
    first, second, third = (job.worlds(number) for number in (1, 2, 3))
    joiner = third[-1]["pid"]
    workers = [(f"worker {event['rank']}", event["pid"]) for event in first]
    workers = [*workers[:2], ("worker 2, killed", job.killed), ("a new worker", joiner)]
    others = sorted(job.bars.keys() - {pid for _, pid in workers})
    servers = [(f"server {number}", pid) for number, pid in enumerate(others)]
    small, large = max(event["at"] for event in second), max(event["at"] for event in third)
    last = max(event["at"] for event in job.events if event["event"] == "step" and event["size"] == 2)
    margin = 150_000_000
    return {
        "elastic-death": Picture(
            "A worker is killed: the others finish the step, and are a world of two from the next commit on",
            job.killed_at - margin, small + margin,
            [(job.killed_at, "killed"), (small, "a world of two")], [*workers[:3], *servers],
        ),
        "elastic-join": Picture(
            "Another one joins: all leave the world of two at the same commit, and take rank 0's state",
            last - margin, large + margin,
            [(last, "last step of two"), (large, "a world of three")], [*workers[:2], workers[3], *servers],
        ),
    }  # fmt: skip


def draw(job: Recorded, picture: Picture, path: Path) -> None:
    """Writes a PNG."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 0.45 * len(picture.rows) + 1.7), layout="constrained")
    axes = figure.add_subplot()
    for place, (_, pid) in enumerate(picture.rows):
        for kind in COLOURS:
            spans = [
                ((begin - picture.begin) / 1e6, duration / 1e6)
                for found, begin, duration in job.bars.get(pid, [])
                if found == kind and begin < picture.end and begin + duration > picture.begin
            ]
            height = 0.7 if kind == "step" else 0.4
            axes.broken_barh(spans, (place - height / 2, height), facecolors=COLOURS[kind])
    for at, text in picture.marks:
        axes.axvline((at - picture.begin) / 1e6, color="#333", linewidth=1)
        axes.annotate(text, ((at - picture.begin) / 1e6, -0.75), xytext=(-4, 0), textcoords="offset points", fontsize=9,
                      ha="right")  # fmt: skip
    axes.set_yticks(range(len(picture.rows)), [name for name, _ in picture.rows])
    axes.set_ylim(len(picture.rows) - 0.4, -1.1)
    axes.set_xlim(0, (picture.end - picture.begin) / 1e6)
    axes.set_xlabel("ms")
    axes.set_title(picture.title, fontsize=10)
    axes.legend(handles=[Patch(color=colour, label=MEANINGS[kind]) for kind, colour in COLOURS.items()],
                loc="upper left", bbox_to_anchor=(0, -0.16), fontsize=8, ncols=3, frameon=False)  # fmt: skip
    figure.savefig(path, dpi=110)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--plot", type=Path, default=report.OUT, metavar="DIR", help="where both pictures go")
    return parser.parse_args()


def main() -> None:
    """Records once, and draws both."""
    options = parse_arguments()
    options.plot.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        job = record(Path(folder))
    for name, picture in pictures(job).items():
        draw(job, picture, options.plot / f"{name}.png")
        print(f"{options.plot / f'{name}.png'}: {(picture.end - picture.begin) / 1e6:.0f} ms")


if __name__ == "__main__":
    main()
