"""A rank is killed in the middle of a step under torchrun: it starts the ranks anew, and the result is the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.multiprocess.c10d.pool import BACKEND, EXAMPLES

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 80.0


def test_a_killed_rank_is_replaced_and_the_job_goes_on(warm_python: list[str], tmp_path: Path) -> None:
    command = [*warm_python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1"]
    command += [
        "--no-python",
        *warm_python,
        str(EXAMPLES / "elastic_restart.py"),
        "--backend",
        BACKEND,
        "--dtype",
        "float64",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = job.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        job.terminate()  # torchrun ends its ranks; killed, it would leave them behind
        raise AssertionError("\n".join(job.communicate(timeout=20))) from None
    assert job.returncode == 0, out + err
    assert out.count("rank 1: dies") == 1
    for rank in range(2):
        assert f"rank {rank}: restart 1 goes on with step 6" in out
    assert "result: difference to one process" in out
    assert not list(tmp_path.glob("elastic_restart_*")), "the checkpoint is left behind"
