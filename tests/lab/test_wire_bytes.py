"""What crosses the wire, counted by the workers and by the kernel: M up and M down per worker, next to no headers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from byteps_like.launch.lab import Lab
from byteps_like.launch.lab_job import run_in_lab
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
