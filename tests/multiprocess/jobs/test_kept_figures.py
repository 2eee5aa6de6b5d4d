"""What servers count of the values that they keep, in a real job: exact numbers, whose waits, and where it is told."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from byteps_like.cli.status import _shown
from byteps_like.config import Config
from byteps_like.launch.kept import with_kept
from byteps_like.launch.monitor import StatusSample, take_sample
from byteps_like.server.figures import RankFigures
from byteps_like.timeline.merge import merge
from tests.multiprocess.real_world import Pool, job

RANKS, PARTS, STALL = 3, 5, 0.3
FIRST = {"w": np.zeros((PARTS - 1) * 1024, np.float32), "b": np.zeros(4, np.float32)}
"""Five partitions of at most 4 KiB."""


def pull(store: Any) -> list[Any]:
    return [store.pull(name, np.empty_like(value)) for name, value in FIRST.items()]


def push(store: Any, value: float) -> list[Any]:
    return [store.push(name, np.full_like(like, value)) for name, like in FIRST.items()]


def done(futures: list[Any]) -> None:
    for future in futures:
        future.wait(30)


def told(config: Config) -> tuple[StatusSample, str]:
    """What `status` asks for, and the metrics of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{config.metrics_port}/metrics", timeout=10) as answer:
        return with_kept(config, take_sample(config)), answer.read().decode()


def train(bps: Any, rank: int, size: int, config: Config) -> tuple[StatusSample, str] | None:
    """Two stores, and an order that leaves nothing to chance."""
    bounded = bps.Store("bounded", FIRST, consistency="ssp:s=1")
    spared = bps.Store("spared", FIRST, consistency="backup:b=1")
    for turn in range(size):  # of versions 0: ages 0, 1 and 2
        if turn == rank:
            done(push(bounded, 1))
        bps.barrier()
    if rank == 0:  # ages 3 and 4
        done(push(bounded, 1) + push(bounded, 1))
    bps.barrier()
    reads = pull(bounded) if rank == 0 else []  # until both others have pushed again
    for turn in range(1, size):
        if turn == rank:
            time.sleep(STALL)
            done(push(bounded, 1))
        bps.barrier()
    done(reads)
    pushed = push(spared, 1) if rank == 0 else []
    bps.barrier()
    for turn in range(1, size):
        if turn == rank:
            time.sleep(STALL)
            done(push(spared, float("nan")))  # rank 2's are late in any case
        bps.barrier()
    done(pushed)
    found = told(config) if rank == 0 else None
    bps.barrier()
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same, and the timeline."""
    trace = tmp_path_factory.mktemp("kept")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pool = Pool(RANKS)
    try:
        with job(RANKS, 1, metrics_port=port, trace=str(trace), partition_bytes=4096) as cluster:
            sample, text = pool.run(cluster, train, cluster.config())[0]
    finally:
        pool.close()
    return sample, text, trace


def counts(one: RankFigures) -> tuple[int, ...]:
    return (one.clock, one.counted, one.late, one.not_finite, one.held, one.ages, one.oldest)


def test_each_contribution_is_counted_once_by_what_became_of_it(ended: Any) -> None:
    kept = ended[0].kept
    assert list(kept) == ["store/bounded", "store/spared"] and ended[0].silent == ()
    assert all(one.partitions == PARTS for one in kept.values())
    assert [counts(one) for one in kept["store/bounded"].ranks] == [
        (3, 3 * PARTS, 0, 0, 0, (0 + 3 + 4) * PARTS, 4),
        (2, 2 * PARTS, 0, 0, 0, (1 + 5) * PARTS, 5),
        (2, 2 * PARTS, 0, 0, 0, (2 + 6) * PARTS, 6),
    ]
    assert [counts(one) for one in kept["store/spared"].ranks] == [
        (1, PARTS, 0, 0, 0, 0, 0),
        (1, 0, 0, PARTS, 0, 0, 0),
        (1, 0, PARTS, 0, 0, 0, 0),
    ]


def test_waits_have_a_cause_and_are_those_of_the_rank_that_was_waited_for(ended: Any) -> None:
    reads, versions = 1, 2
    bounded = ended[0].kept["store/bounded"].ranks
    assert bounded[0].waited[reads] >= STALL
    assert [one.awaited[reads] for one in bounded] == [0, 0, bounded[0].waited[reads]]
    assert [one.waited[reads] for one in bounded[1:]] == [0, 0]
    assert all(one.waited[versions] == one.waited[3] == 0 for one in bounded)
    spared = ended[0].kept["store/spared"].ranks
    assert spared[0].waited[versions] >= STALL
    assert [one.awaited[versions] for one in spared] == [0, spared[0].waited[versions], 0]
    assert [one.waited[versions] for one in spared[1:]] == [0, 0]


def test_status_shows_them(ended: Any) -> None:
    out = StringIO()
    Console(file=out, width=80).print(_shown(None, ended[0]))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["store/bounded", "·", "5", "partitions"] in lines
    waited = f"{ended[0].kept['store/bounded'].ranks[0].waited[1]:.2f}"
    assert ["0", "3", "15", "0", "0", "0", "2.33,", "4"] in [line[:8] for line in lines]
    assert any(["reading", waited] in (line[:2], line[8:10]) for line in lines)


def test_prometheus_has_them_by_tensor_and_worker(ended: Any) -> None:
    found: Counter[str] = Counter()
    for line in ended[1].splitlines():
        if line.startswith("byteps_like_kept_contributions_total{"):
            labels = dict(part.split("=") for part in line.partition("{")[2].partition("}")[0].split(","))
            found[f"{labels['worker']} {labels['outcome']}"] += float(line.split()[-1])
    assert found['"0" "counted"'] == 4 * PARTS and found['"2" "late"'] == PARTS
    assert 'byteps_like_kept_waited_seconds_total{cause="reading"' in ended[1]
    assert "byteps_like_kept_oldest{" in ended[1] and "byteps_like_kept_clock{" in ended[1]


def test_the_timeline_has_a_span_for_each_wait_and_an_instant_for_what_was_left_out(ended: Any) -> None:
    trace: Path = ended[2]
    events = merge(trace)["traceEvents"]
    left = Counter((one["name"], one["args"]["rank"]) for one in events if one["cat"] == "left out")
    assert left == {("not finite", 1): PARTS, ("late", 2): PARTS}
    spans = Counter((one["name"], one["args"]["whom"]) for one in events if one["cat"] == "held up")
    assert spans["rank 0: reading", "rank 2"] == spans["rank 0: version", "rank 1"] == PARTS
    longest = max(one["dur"] for one in events if one["name"] == "rank 0: reading")
    assert longest / 1e6 == pytest.approx(ended[0].kept["store/bounded"].ranks[0].waited[1], abs=1e-3)
    tensors = {one["args"]["tensor"] for one in events if one["cat"] == "held up"}
    assert {"store/bounded/w", "store/bounded/b"} <= tensors
