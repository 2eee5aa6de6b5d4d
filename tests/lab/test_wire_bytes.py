"""What crosses the wire, counted by the workers and by the kernel: M up and M down per worker, next to no headers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from byteps_like.launch.fleet import choose
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions

WORKERS, SERVERS = 2, 2
NBYTES = 32 << 20
PARTITION = 4 << 20
# TCP and IP headers, acknowledgements of what comes the other way, heartbeats.
OVERHEAD = 1.01


@pytest.mark.timeout(90)
def test_each_worker_sends_and_receives_its_bytes_once(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make_lab(WORKERS + SERVERS, rate="2gbit")
    script = str(Path(__file__).with_name("count_bytes.py"))
    command = [sys.executable, script, str(tmp_path), str(NBYTES)]
    before = [host.counters() for host in lab.hosts]
    environment = {"BYTEPS_LIKE_PARTITION_BYTES": str(PARTITION), "PYTHONPATH": str(Path(__file__).parents[2])}
    options = RunOptions(command, WORKERS, SERVERS, environment=environment, quiet=True, timeout=60)
    assert run_in_lab(lab, options) == 0
    totals = [host.counters() - start for host, start in zip(lab.hosts, before, strict=True)]

    for rank in range(WORKERS):
        moved = json.loads((tmp_path / f"rank{rank}.json").read_text())
        _check_worker(rank, moved)
    for index, total in enumerate(totals[WORKERS:]):
        share = WORKERS * NBYTES / SERVERS
        assert share <= total.rx_bytes <= share * OVERHEAD, f"server {index} received {total.rx_bytes} of {share}"
        assert share <= total.tx_bytes <= share * OVERHEAD, f"server {index} sent {total.tx_bytes} of {share}"


def _check_worker(rank: int, moved: dict[str, int]) -> None:
    text = f"rank {rank}: {moved}"
    assert moved["wrong"] == 0, text
    assert moved["partitions"] == NBYTES // PARTITION, text
    assert moved["payload_sent"] == NBYTES, text
    assert moved["payload_received"] == NBYTES, text
    assert moved["bytes_sent"] - NBYTES < NBYTES * 0.001, text
    assert moved["bytes_received"] - NBYTES < NBYTES * 0.001, text
    assert NBYTES <= moved["wire_tx"] <= NBYTES * OVERHEAD, text
    assert NBYTES <= moved["wire_rx"] <= NBYTES * OVERHEAD, text


@pytest.mark.timeout(90)
def test_servers_beside_workers_make_all_cards_carry_the_same(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """n = 3, k = 1: servers beside workers sum a fifth each, the spare one two; each card carries 6/5 M each way."""
    fleet = choose([1.0] * 4, 3)
    assert fleet.hosts == (0, 1, 2, 3)
    lab = make_lab(4, rate="2gbit")
    command = [sys.executable, str(Path(__file__).with_name("count_bytes.py")), str(tmp_path), str(NBYTES)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    before = [host.counters() for host in lab.hosts]
    options = RunOptions(command, 3, environment=environment, quiet=True, timeout=60)
    assert run_in_lab(lab, options, 1, fleet) == 0
    for index, (host, start) in enumerate(zip(lab.hosts, before, strict=True)):
        total = host.counters() - start
        for way in (total.rx_bytes, total.tx_bytes):
            assert 0.999 * 1.2 * NBYTES <= way <= 1.2 * NBYTES * OVERHEAD * 1.01, f"host {index}: {total}"
    for rank in range(3):
        moved = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert moved["wrong"] == 0
        # What the server beside it sums, it reads in shared memory.
        assert moved["payload_sent"] == pytest.approx(0.8 * NBYTES, rel=1e-5)
