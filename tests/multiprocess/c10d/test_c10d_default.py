"""Scripts that name no backend: over gloo, unless somebody has said that it is to be ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import torch
import torch.distributed as dist
import byteps_like.torch

{before}
mesh = dist.init_device_mesh("cpu", (1,))
total = torch.ones(3)
dist.all_reduce(total, group=mesh.get_group())
print(*(type(group).__module__ for group in (dist.group.WORLD, mesh.get_group())), total.tolist())
dist.destroy_process_group()
"""

OURS = "byteps_like.torch.c10d.process_group byteps_like.torch.c10d.process_group [1.0, 1.0, 1.0]"


def _run(before: str, **environment: str) -> str:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "PYTHONPATH": str(ROOT)}
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        env=clean | place | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ours_where_it_was_said() -> None:
    assert _run("byteps_like.torch.use_as_default('cpu')") == OURS
    assert _run("", BYTEPS_LIKE_DEFAULT_BACKEND="cpu, cuda") == OURS


def test_torch_s_where_nobody_said_anything() -> None:
    assert "byteps" not in _run("")


def test_a_device_that_we_do_not_serve_is_refused_and_nothing_is_changed() -> None:
    before = dict(dist.Backend.default_device_backend_map)
    with pytest.raises(InvalidArgumentError, match="serves cpu, cuda, xpu, mps, not 'hpu'"):
        bps.use_as_default("cpu", "hpu")
    assert dist.Backend.default_device_backend_map == before
