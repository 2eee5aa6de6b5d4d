"""Horovod's scripts as they are, run in jobs of their own: only `horovod` is another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import os, sys
import horovod
import horovod.torch as hvd
import torch
import byteps_like.horovod
from horovod.common.elastic import State
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod import run
from horovod.common.util import nccl_built
from horovod.torch.compression import Compression, Compressor, FP16Compressor, NoneCompressor
from horovod.torch.functions import broadcast_parameters
from horovod.torch.mpi_ops import Average, size, synchronize
from neighbour import NUMBER

hvd.init()
assert horovod.torch is hvd and horovod.__version__ >= "0.28" and sys.argv[1:] == ["--flag", "7"]
assert int(os.environ["HOROVOD_RANK"]) == hvd.rank() and int(os.environ["HOROVOD_LOCAL_SIZE"]) == hvd.local_size()
assert Compression.fp16 is FP16Compressor and issubclass(NoneCompressor, Compressor)
assert synchronize(hvd.allreduce_async(torch.ones(2), op=Average)).tolist() == [1.0, 1.0]
absent = ("tensorflow", "run.runner", "spark")
assert hvd.elastic.run is byteps_like.horovod.elastic.run and issubclass(hvd.elastic.TorchState, State)
for text in (f"import horovod.{name}" for name in absent):
    try:
        exec(text)
    except ImportError:
        continue
    raise AssertionError(text)
try:
    run(print, np=2)
except ValueError as error:
    assert "byteps-like run" in str(error)
else:
    raise AssertionError("run")
assert nccl_built(verbose=True) is False and horovod.runner.run is run
try:
    hvd.allgather(torch.ones(2, 2 + hvd.rank()))
except HorovodInternalError:
    pass
print(f"rank {hvd.rank()} of {size()}: {NUMBER}, {nccl_built()}", flush=True)
hvd.shutdown()
assert not hvd.is_initialized()
"""


def run(python: list[str], script: Path, *arguments: str, servers: int) -> str:
    """What a job of two workers has printed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "byteps_like", "run", "-n", "2", "-s", str(servers), "--"]
    command += [*python, "-m", "byteps_like.horovod", str(script), *arguments]
    done = subprocess.run(command, env=environ, timeout=90, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("servers", [0, 1])
def test_a_script_that_imports_horovod(warm_python: list[str], tmp_path: Path, servers: int) -> None:
    (tmp_path / "neighbour.py").write_text("NUMBER = 42\n")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    text = run(warm_python, script, "--flag", "7", servers=servers)
    assert "rank 0 of 2: 42, False" in text and "rank 1 of 2: 42, False" in text


def test_the_example_before_its_import_line_was_changed(warm_python: list[str], tmp_path: Path) -> None:
    text = (ROOT / "examples" / "from_horovod.py").read_text(encoding="utf-8")
    assert text.count("import byteps_like.torch as hvd") == 1
    script = tmp_path / "from_horovod.py"
    script.write_text(text.replace("import byteps_like.torch as hvd", "import horovod.torch as hvd"))
    assert "epoch 1: training accuracy" in run(warm_python, script, "--epochs", "1", servers=0)


def test_horovod_itself_stays_if_it_was_first(tmp_path: Path) -> None:
    """Two calls are one; and nothing is put in the place of a module that is in use."""
    (tmp_path / "horovod.py").write_text("")
    first = (
        "import byteps_like; one = byteps_like.as_horovod(); assert byteps_like.as_horovod() is one; import horovod;"
    )
    second = "import horovod, byteps_like; byteps_like.as_horovod()"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    for text, expected in ((first + "assert horovod is one", ""), (second, "has been imported already")):
        done = subprocess.run([sys.executable, "-c", text], env=environ, timeout=60, capture_output=True, text=True)
        assert (done.returncode != 0) == bool(expected) and expected in done.stderr, done.stderr
