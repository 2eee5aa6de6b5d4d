"""A real job that is recorded: what must be in its trace, how often, and in which order."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import order_record
from byteps_like.dtypes import DType, Op
from byteps_like.timeline.analysis import Analysis
from byteps_like.timeline.merge import merge
from byteps_like.timeline.orders import RecordingOrder
from byteps_like.timeline.recorder import recorder
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.session import connect
from tests.multiprocess.jobs.timeline_worker import CALLS, COUNT, ROUNDS
from tests.multiprocess.real_world import job

Event = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
RANKS, PARTS, SERVER = (0, 1), 3, 1000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of two workers and a server over TCP, started by the launcher, which merges it."""
    target = tmp_path_factory.mktemp("timeline") / "job.json"
    settings = {"TRACE": str(target), "PARTITION_BYTES": "4096", "TRANSPORT": "tcp"}
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        **{f"BYTEPS_LIKE_{name}": text for name, text in settings.items()},
    }
    command = [sys.executable, "-m", "byteps_like", "run", "-n", "2", "-s", "1", "--shards", "1", "-q", "--"]
    command += [sys.executable, "-m", "tests.multiprocess.jobs.timeline_worker"]
    done = subprocess.run(command, env=environ, cwd=ROOT, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.fixture(scope="module")
def stages(trace: dict[str, Any]) -> dict[tuple[int, int], dict[tuple[str, int], Event]]:
    """By (part, round), then by stage and rank, of the tensor."""
    found: dict[tuple[int, int], dict[tuple[str, int], Event]] = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event.get("cat") == "partition" and event["args"]["tensor"] == "weights":
            args = event["args"]
            place = found[args["part"], args["round"]]
            key = (event["name"], args.get("rank", event["pid"]))
            assert key not in place, "a stage came twice"
            place[key] = event
    return found


def test_every_partition_and_round_has_every_stage_once(stages: dict[tuple[int, int], dict[Any, Event]]) -> None:
    assert sorted(stages) == [(part, number) for part in range(PARTS) for number in range(ROUNDS)]
    own = ("ready", "queued", "sent", "arrived", "returned", "received")
    expected = {(stage, rank) for stage in own for rank in RANKS} | {("summed", SERVER)}
    for place in stages.values():
        assert place.keys() == expected
        for event in place.values():
            assert (event["args"]["bytes"], event["args"]["priority"]) == (4 * COUNT // PARTS, 7)


def test_stages_are_in_causal_order_on_one_clock(stages: dict[tuple[int, int], dict[Any, Event]]) -> None:
    def end(event: Event) -> float:
        return float(event["ts"] + event["dur"])

    for place in stages.values():
        summed = place["summed", SERVER]
        for rank in RANKS:
            chain = [place["ready", rank]["ts"], place["queued", rank]["ts"], end(place["queued", rank])]
            chain += [place["sent", rank]["ts"], place["arrived", rank]["ts"], end(summed)]
            chain += [place["returned", rank]["ts"], place["received", rank]["ts"], end(place["received", rank])]
            slack = [after - before for before, after in itertools.pairwise(chain)]
            assert min(slack) > -0.002, chain  # two thousandths of a microsecond: rounding
        assert summed["ts"] >= min(place["sent", rank]["ts"] for rank in RANKS)


def test_collectives_have_their_steps(trace: dict[str, Any]) -> None:
    own = [
        event for event in trace["traceEvents"] if event.get("cat") == "collective" and event["args"]["group"] == "ring"
    ]
    calls = [event for event in own if event["args"]["step"] is None]
    assert Counter(event["pid"] for event in calls) == dict.fromkeys(RANKS, CALLS)
    for call in calls:
        args = call["args"]
        assert (args["operation"], args["algorithm"], args["bytes"]) == ("all_reduce", "ring", 4 * COUNT)
        steps = [
            event for event in own
            if event["pid"] == call["pid"] and event["args"]["call"] == args["call"] and event is not call
        ]  # fmt: skip
        peer = 1 - call["pid"]
        kinds = Counter(event["name"] for event in steps)
        # Two ranks: half is sent and reduced, the other half gathered.
        assert kinds == {f"send to {peer}": 2, f"receive and reduce from {peer}": 1, f"receive from {peer}": 1}
        assert sum(event["args"]["bytes"] for event in steps if event["name"].startswith("send")) == 4 * COUNT
        assert all(call["ts"] - 0.002 <= event["ts"] <= call["ts"] + call["dur"] + 0.002 for event in steps)


def test_waits_say_whom_they_were_for(trace: dict[str, Any]) -> None:
    waits = [event for event in trace["traceEvents"] if event.get("cat") == "wait"]
    assert waits
    assert {event["args"]["cause"] for event in waits} - {"unknown"}
    assert len(Analysis(trace["traceEvents"]).slowest()) == PARTS


def test_all_processes_are_named_and_on_one_clock(trace: dict[str, Any]) -> None:
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1", "server 0"}
    assert trace["otherData"]["lost"] == 0
    for process in trace["otherData"]["processes"]:
        assert abs(process["clock_offset_ns"]) <= process["clock_error_ns"], "one host has one clock"


def test_a_running_job_is_recorded_on_demand(tmp_path: Path) -> None:
    with job(2, 1) as cluster, ThreadPoolExecutor(2) as threads:
        workers = list(threads.map(lambda rank: connect(Config.from_env({}, **cluster.rank_settings(rank))), RANKS))
        try:
            list(threads.map(lambda worker: add_up(worker, "before"), workers))
            assert order_record(cluster.config(), RecordingOrder(str(tmp_path))) == 3
            deadline = time.monotonic() + 20
            while not recorder.active:
                assert time.monotonic() < deadline
                threading.Event().wait(0.01)
            list(threads.map(lambda worker: add_up(worker, "recorded"), workers))
        finally:
            recorder.stop()
            list(threads.map(lambda worker: worker.close(), workers))
    stages = Counter(
        (event["args"]["tensor"], event["name"])
        for event in merge(tmp_path)["traceEvents"]
        if event["cat"] == "partition" and event["name"] != "returned"  # the last of which nobody waits for
    )
    expected = {"ready": 2, "queued": 2, "sent": 2, "arrived": 2, "summed": 1, "received": 2}
    assert stages == {("recorded", stage): count for stage, count in expected.items()}


def add_up(worker: Any, name: str) -> None:
    (declared,) = worker.declare([TensorSpec(name, DType.FLOAT32, (8,))])
    vector = np.ones(8, np.float32)
    worker.push_pull(declared, vector.ctypes.data, Op.SUM).wait(20)
    assert (vector == 2).all()
