"""Two sites, each a job of two workers and a server, below an upper group of two servers: all real processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ports import HeldPorts

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
CLI = [sys.executable, "-m", "byteps_like"]
PATIENCE = 90.0
STAYS = "5"  # seconds that the upper scheduler goes on to tell of a failure

SITE = """
import sys, time
import torch
import byteps_like.torch as bps
from byteps_like.wire.note import NOTE_BYTES

site, scheduler, secret_file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
EVERY, PHASES, SITES = 4, 3, 2
bps.init()
upper = bps.Upper(scheduler, sites=SITES, site=site, servers=2, every=EVERY, merge=1.0, secret_file=secret_file,
                  combine="sum", job="upper")
values = torch.full((1000,), 7 if site == 0 else 0)
store = bps.Store("w", {"w": values}, combine="sum", upper=upper)
sent = upper.stats().get("payload_sent", 0)
for phase in range(PHASES):
    for _ in range(EVERY):
        store.push("w", torch.ones_like(values)).wait()
    while bps.rank() == 0 and store.upper.exchanges <= phase:
        assert store.upper.error is None, store.upper.error
        time.sleep(0.005)
sent = upper.stats().get("payload_sent", 0) - sent
assert bps.rank() or sent == PHASES * (values.nbytes + NOTE_BYTES), sent
wanted = 7 + SITES * PHASES * EVERY * bps.size()
while values[0] != wanted:
    store.exchange_above()
    store.pull("w", values).wait()
bps.barrier()
store.finish()
print("END", site, bps.rank(), values.unique().tolist(), flush=True)
bps.shutdown()
"""


DYING = """
import os, sys, time
import torch
import byteps_like.torch as bps

site, scheduler, secret_file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
bps.init()
upper = bps.Upper(scheduler, sites=2, site=site, servers=2, every=2, merge=0.0, secret_file=secret_file, job="upper")
values = torch.zeros(1000)
store = bps.Store("w", {"w": values}, combine="sum", upper=upper)
def train(steps):
    for _ in range(steps):
        store.push_pull("w", torch.ones(1000), values).wait()
train(2)
while bps.rank() == 0 and store.upper.exchanges == 0:
    time.sleep(0.005)
if site == bps.rank() == 0:
    os._exit(9)
lost = torch.zeros(1)
while site == 1 and not lost:
    train(1)
    lost = bps.broadcast(torch.tensor([float(store.upper.error is not None)]), 0, name="lost")
before = values.clone()
train(5)
assert torch.equal(values, before + 10)  # of both ranks
try:
    store.finish()
except bps.BytePSLikeError as error:
    print("END", bps.rank(), type(error).__name__, flush=True)
bps.shutdown()
"""


@contextlib.contextmanager
def started(*command: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS", "DMLC"))}
    environment |= {"PYTHONPATH": str(ROOT), **settings}
    process = subprocess.Popen(
        [*CLI, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


Process = subprocess.Popen[str]


@contextlib.contextmanager
def two_sites(folder: Path, workers: list[str]) -> Iterator[tuple[list[Process], list[Process]]]:
    """The upper group's processes, and the launchers of both sites, whose workers run a command."""
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    held = HeldPorts()
    port = str(held.numbers[0])
    address, own = f"127.0.0.1:{port}", {"BYTEPS_LIKE_SECRET_FILE": str(secret), "BYTEPS_LIKE_JOB": "upper"}
    with ExitStack() as running:
        running.callback(held.close)
        scheduler = ["scheduler", "--host", "127.0.0.1", "--port", port, "-n", "2", "-s", "2"]
        above = [running.enter_context(started(*scheduler, BYTEPS_LIKE_JOIN_TIMEOUT=STAYS, **own))]
        above += [running.enter_context(started("server", "--scheduler", address, **own)) for _ in range(2)]
        yield (
            above,
            [
                running.enter_context(
                    started("run", "-n", "2", "-s", "1", "--", *workers, str(site), address, str(secret))
                )
                for site in range(2)
            ],
        )


def test_two_sites_have_the_same_in_the_end(tmp_path, warm_python):
    with two_sites(tmp_path, [*warm_python, "-c", SITE]) as (above, sites):
        said = [site.communicate(timeout=PATIENCE)[0] for site in sites]
        for number, (site, text) in enumerate(zip(sites, said, strict=True)):
            assert site.returncode == 0, text
            assert all(f"END {number} {rank} [55]" in text for rank in range(2)), text
        for process in above:
            assert process.wait(PATIENCE) == 0, "the upper group has not ended in good order"


def test_a_site_goes_on_when_another_one_s_leader_dies(tmp_path, warm_python):
    """Which ends that one's job, and the upper one's."""
    with two_sites(tmp_path, [*warm_python, "-c", DYING]) as (above, sites):
        said = [site.communicate(timeout=PATIENCE)[0] for site in sites]
        assert sites[0].returncode != 0 and sites[1].returncode == 0, "\n".join(said)
        assert "has lost the upper group" in said[1] and "training goes on without it" in said[1], said[1]
        assert all(f"END {rank} PeerLostError" in said[1] for rank in range(2)), said[1]
        for process in above:
            process.wait(PATIENCE)  # it doesn't stay
