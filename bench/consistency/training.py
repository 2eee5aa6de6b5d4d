"""Digits, trained in every way with equal numbers of samples: by how much test accuracy differs from bsp's."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench.consistency.jobs import PATIENCE
from bench.consistency.rows import Target
from bench.consistency.training_plan import BSP, Plan
from bench.processes import module
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job

TARGET = Target(-1.0)
WORKERS, SERVERS = 4, 2


def differences(seeds: int, samples: int, timeout: float) -> dict[str, float]:
    """By way, points of accuracy above bsp's, means over seeds. A job that fails ends the process with its exit
    code."""
    with tempfile.TemporaryDirectory(prefix="consistency-") as folder:
        plan = Plan(seeds, samples, folder)
        command = module("bench.consistency.training_worker", str(plan.save()))
        options = RunOptions(command, WORKERS, SERVERS, environment=PATIENCE, quiet=True, timeout=timeout)
        if code := run_job(options):
            sys.exit(code)
        found: dict[str, list[float]] = json.loads((Path(folder) / "accuracies.json").read_text())
    means = {name: 100 * statistics.mean(accuracies) for name, accuracies in found.items()}
    print(f"digits: bsp: {means[BSP]:.2f} %", flush=True)
    return {name: mean - means[BSP] for name, mean in means.items() if name != BSP}
