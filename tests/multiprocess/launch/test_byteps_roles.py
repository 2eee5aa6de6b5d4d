"""A job as BytePS starts it: role by role, by BytePS's own variables, two machines of two workers each."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("byteps_like._core")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
SECONDS = 60

WORKER = """
import torch
import byteps_like.torch as bps

bps.init()
total = bps.push_pull(torch.tensor([float(bps.rank())]), average=False, name="rank")
print(bps.rank(), bps.size(), bps.local_rank(), bps.local_size(), total.item())
"""


@pytest.mark.parametrize("role", ["told by DMLC_ROLE", "told by the command"])
def test_machines_are_counted_and_roles_are_told_apart(warm_python: list[str], tmp_path: Path, role: str) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(secrets.token_hex(32))
    job = {name: text for name, text in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    job |= {"PYTHONPATH": str(ROOT), "BYTEPS_LIKE_SECRET_FILE": str(file), "BYTEPS_LIKE_SHARDS": "1"}
    job |= {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    job |= {"OMP_NUM_THREADS": "1", "BYTEPS_ENABLE_ASYNC": "0"}
    processes: list[subprocess.Popen[str]] = []

    def start(command: list[str], **variables: object) -> subprocess.Popen[str]:
        environment = job | {name: str(value) for name, value in variables.items()}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    def told(name: str) -> dict[str, str]:
        return {"DMLC_ROLE": name} if role == "told by DMLC_ROLE" else {}

    try:
        scheduler = start([sys.executable, "-m", "byteps_like", "scheduler"], DMLC_PS_ROOT_PORT=0, **told("scheduler"))
        assert scheduler.stdout is not None
        announced = re.search(r":(\d+) \(pid", scheduler.stdout.readline())
        assert announced is not None
        job["DMLC_PS_ROOT_PORT"] = announced[1]
        start([sys.executable, "-m", "byteps_like", "server"], **told("server"))
        places = [(machine, local) for machine in range(2) for local in range(2)]
        script = [*warm_python, "-c", WORKER]
        workers = [
            start(script, DMLC_ROLE="worker", DMLC_WORKER_ID=m, BYTEPS_LOCAL_RANK=n, BYTEPS_LOCAL_SIZE=2)
            for m, n in places
        ]
        answers = [worker.communicate(timeout=SECONDS) for worker in workers]
        assert [out.split() for out, _ in answers] == [
            [str(2 * machine + local), "4", str(local), "2", "6.0"] for machine, local in places
        ], "\n".join(error for _, error in answers)
        assert [process.wait(SECONDS) for process in processes] == [0] * 6
    finally:
        for process in processes:
            process.kill()
            process.communicate()
