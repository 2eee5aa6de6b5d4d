"""torchrun: unmodified, with a restart of all workers after one failed."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_torchrun_restarts_the_world(warm_python: list[str], tmp_path: Path) -> None:
    command = [*warm_python, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--max_restarts", "1"]
    command += [
        "--rdzv_backend",
        "c10d",
        "--rdzv_endpoint",
        "localhost:0",
        "--no-python",
        *warm_python,
        "-m",
        "tests.scenarios.c10d.torchrun_job",
    ]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.0", "1.1"]
