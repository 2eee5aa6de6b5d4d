"""Digits and a GPT, trained in every way with equal numbers of samples: by how much the score differs from bsp's."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.consistency.jobs import PATIENCE
from bench.consistency.rows import Target
from bench.consistency.training_plan import BSP, Plan
from bench.processes import module
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job

WORKERS, SERVERS = 4, 2


@dataclass(frozen=True)
class Trained:
    """A task, and what is asked of every way."""

    task: str
    score: str
    unit: str
    steps: int
    """Of bsp, by default."""
    samples: int
    """Of one such step, all ranks."""
    target: Target


TRAINED = (
    Trained("digits", "accuracy", "points", 400, 4 * 32, Target(-1.0)),
    Trained("gpt", "loss", "nats", 400, 4 * 8, Target(most=0.1)),
)


def differences(trained: Trained, seeds: int, samples: int, timeout: float) -> dict[str, float]:
    """By way, how much greater the score is than bsp's, means over seeds. A job that fails ends the process with its
    exit code."""
    with tempfile.TemporaryDirectory(prefix="consistency-") as folder:
        plan = Plan(trained.task, seeds, samples, folder)
        command = module("bench.consistency.training_worker", str(plan.save()))
        options = RunOptions(command, WORKERS, SERVERS, environment=PATIENCE, quiet=True, timeout=timeout)
        if code := run_job(options):
            sys.exit(code)
        found: dict[str, list[float]] = json.loads((Path(folder) / "scores.json").read_text())
    means = {name: statistics.mean(scores) for name, scores in found.items()}
    print(f"{trained.task}: bsp: {trained.score} {means[BSP]:.3f}", flush=True)
    return {name: mean - means[BSP] for name, mean in means.items() if name != BSP}
