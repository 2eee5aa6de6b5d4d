"""Jobs by `byteps-like run` in which workers have no native core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = [sys.executable, "-c", "from byteps_like.cli.main import main; main()", "run"]

pytest.importorskip("byteps_like._core", reason="the native core is not built, and the servers need it")


def run_job(*arguments: str) -> str:
    """What the job printed; fails with it if the job did."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS", "DMLC"))}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [*RUN, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_example_as_its_docstring_says():
    output = run_job("-n", "2", "-s", "1", "--", sys.executable, str(ROOT / "examples" / "portable.py"))
    assert "loss 0.0" in output
    for rank in range(2):
        assert f"rank {rank} of 2" in output


def test_the_example_encrypted():
    output = run_job("--tls", "-n", "2", "-s", "1", "--", sys.executable, str(ROOT / "examples" / "portable.py"))
    assert "loss 0.0" in output


TRAINING = """
import hashlib, os, sys
if os.environ["BYTEPS_LIKE_RANK"] == "1":
    sys.modules["byteps_like._core"] = None  # as on a host where it can't be built
import torch
import byteps_like.torch as bps
bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Linear(5, 3)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(7, 5)).square().mean().backward()
    optimizer.step()
data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
half = bps.push_pull(torch.full((3,), bps.rank() + 1.0, dtype=torch.bfloat16), average=True, name="half")
print("END", hashlib.sha256(data).hexdigest(), half.tolist(), flush=True)
bps.shutdown()
"""


def test_torch_falls_back_says_so_and_trains_with_native_workers():
    output = run_job("-n", "2", "-s", "1", "--", sys.executable, "-c", TRAINING)
    ends = {line.partition("END")[2] for line in output.splitlines() if "END" in line}
    assert len(ends) == 1, output
    assert "[1.5, 1.5, 1.5]" in ends.pop()
    told = [line for line in output.splitlines() if "native core is not installed" in line]
    assert len(told) == 1, output
    assert "worker 1" in told[0]


KEEPING = """
import sys
sys.modules["byteps_like._core"] = None  # as on a host where it can't be built
import numpy as np
from byteps_like.config import Config
from byteps_like.dtypes import DType
from byteps_like.portable.join import join
from byteps_like.wire.note import Note
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.keeping import KeepSpec

worker = join(Config.from_env())
first = np.arange(30_001, dtype=np.int64)
(declared,) = worker.declare([TensorSpec("w", DType.INT64, first.shape, partition_bytes=50_000)])
kept = worker.keep(declared, KeepSpec("ssp:s=2", "sum:age=none,damp=none", "add", root=2), first.ctypes.data)
value = np.empty_like(first)
for step in range(20):
    gradient = np.full_like(first, (worker.rank + 1) * (step + 1))
    handle = kept.push(gradient.ctypes.data, Note(base=0))
    kept.pull(value.ctypes.data).wait()
    handle.wait()
worker.barrier()
kept.pull(value.ctypes.data).wait()
servers = {part.server for part in declared.partitions}
print("END", len(declared.partitions) > 4, sorted(servers), set((value - first).tolist()), flush=True)
worker.close()
"""


def test_three_workers_without_the_core_share_a_value_that_two_servers_keep():
    output = run_job("-n", "3", "-s", "2", "--", sys.executable, "-c", KEEPING)
    ends = [line.partition("END ")[2] for line in output.splitlines() if "END" in line]
    assert ends == [f"True [0, 1] {{{(1 + 2 + 3) * 210}}}"] * 3, output
