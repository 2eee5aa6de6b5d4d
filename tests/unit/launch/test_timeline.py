"""The timeline's parts, clock and orders; a made-up trace whose answer is known."""

from __future__ import annotations

import base64
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps_like.config import Config
from byteps_like.control.calls.session import Session
from byteps_like.errors import ConfigError, InvalidArgumentError
from byteps_like.timeline.analysis import Analysis
from byteps_like.timeline.clock import Clock
from byteps_like.timeline.merge import RECORD, merge
from byteps_like.timeline.orders import NEXT, RecordingOrder, parse_steps
from byteps_like.timeline.parts import PartWriter, read_chunks
from byteps_like.timeline.perfetto import load, merged, write
from byteps_like.timeline.recorder import Recorder, recorder
from byteps_like.timeline.records import SERVERS, RecordKind
from byteps_like.timeline.report import tables, verdict
from tests.fakes.software_driver import DRIVER, needs_software_driver

MS = 1_000_000  # nanoseconds
BOOT = 7_000_000_000


def record(kind: RecordKind, member: int, begin: float, end: float, **more: int) -> np.ndarray:
    """One record; times in ms."""
    row = np.zeros(1, RECORD)
    row["kind"], row["member"] = kind, member
    row["begin"], row["duration"] = BOOT + round(begin * MS), round((end - begin) * MS)
    for name, value in more.items():
        row[name] = value
    return row


def push_pull(rank: int, ready: float, arrived: float, received: float, number: int) -> list[np.ndarray]:
    """What a rank and its server record of one round of key 9; the other rank arrives by itself."""
    more = {"key": 9, "round": number, "bytes": 4096}
    return [
        record(RecordKind.READY, rank, ready, ready, **more),
        record(RecordKind.QUEUED, rank, ready, ready + 1, peer=SERVERS, **more),
        record(RecordKind.SENT, rank, ready + 1, arrived, peer=SERVERS, **more),
        record(RecordKind.ARRIVED, SERVERS, arrived, arrived, peer=rank, **more),
        record(RecordKind.RECEIVED, rank, received - 1, received, peer=SERVERS, **more),
    ]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Three steps of two ranks: rank 1 takes 30 ms to its gradients, rank 0 takes 10 and waits for the rest."""
    for rank in (0, 1):
        writer = PartWriter(tmp_path)
        writer.path = writer.path.rename(tmp_path / f"rank{rank}.part")
        writer.json("process", host="h", pid=rank)
        writer.json("names", value={"partitions": {"9": ["gradients.0", 3]}, "groups": {}})
        # Rank 1 lives on another host, whose clock is 100 ms behind.
        writer.json("clock", value=[100 * MS * rank, 1000])
        shift, ready = 100 * rank, (10, 30)[rank]
        for step in range(3):
            base = 50 * step - shift
            rows = push_pull(rank, base + ready, base + ready + 4, base + 40, step)
            if rank == 0:  # the server shares its clock
                rows += push_pull(1, 50 * step + 30, 50 * step + 34, 50 * step + 40, step)[3:4]
                summed = {"key": 9, "round": step, "bytes": 4096}
                rows.append(record(RecordKind.SUMMED, SERVERS, 50 * step + 11, 50 * step + 35, **summed))
            else:
                del rows[3]
            rows.append(record(RecordKind.WAIT, rank, base + ready + 1, base + 40, key=9))
            writer.records(np.concatenate(rows).tobytes())
            spans = [("update", "update", 41, 45, {"layer": ""}), ("step", f"step {step}", 0, 50, {"step": step})]
            writer.json(
                "events",
                events=[
                    [category, name, rank, BOOT + (base + begin) * MS, (end - begin) * MS, args]
                    for category, name, begin, end, args in spans
                ],
            )
        writer.close()
    return tmp_path


def test_the_trace_is_on_one_clock_and_as_viewers_want_it(recorded: Path) -> None:
    trace = merged(recorded)
    target = recorded / "trace.json.gz"
    write(trace, target)
    assert load(target) == json.loads(json.dumps(trace))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in spans if event["name"] == "step 1"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in steps] == [(0, 50_000, 50_000), (1, 50_000, 50_000)]
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", SERVERS: "server 0"}
    last: dict[tuple[int, int], float] = {}
    for event in spans:
        assert event["ts"] >= last.get((event["pid"], event["tid"]), 0.0), "two of a track overlap"
        last[event["pid"], event["tid"]] = event["ts"] + event["dur"]
        assert {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"} == event.keys()


def test_each_partition_has_its_stages(recorded: Path) -> None:
    found: dict[tuple[Any, ...], int] = {}
    for event in merge(recorded)["traceEvents"]:
        if event["cat"] == "partition":
            args = event["args"]
            assert (args["tensor"], args["part"], args["key"], args["bytes"]) == ("gradients.0", 3, "0x9", 4096)
            key = (event["name"], event["pid"])
            found[key] = found.get(key, 0) + 1
    workers = {(stage, rank): 3 for stage in ("ready", "queued", "sent", "received", "updated") for rank in (0, 1)}
    assert found == workers | {("arrived", SERVERS): 6, ("summed", SERVERS): 3}


def on_a_gpu(step: int) -> list[np.ndarray]:
    """A round of two partitions of 10 ms: encoded, copied, sent, summed by somebody, copied and decoded; in turns."""
    stages = (
        RecordKind.ENCODED,
        RecordKind.DOWN,
        RecordKind.QUEUED,
        RecordKind.SENT,
        RecordKind.RECEIVED,
        RecordKind.UP,
        RecordKind.DECODED,
    )
    rows = []
    for part in range(2):
        begin, more = 50 * step + 10 * part, {"key": 9 + part, "round": step, "bytes": 4096, "peer": SERVERS}
        rows.append(record(RecordKind.READY, 0, begin, begin, **more))
        rows += [record(kind, 0, begin + 10 * n, begin + 10 * n + 10, **more) for n, kind in enumerate(stages)]
    return rows


def test_the_way_of_a_gpu_s_partitions_is_read_from_top_to_bottom(tmp_path: Path) -> None:
    from byteps_like.timeline.draw import _rows

    writer = PartWriter(tmp_path)
    writer.records(np.concatenate(on_a_gpu(0)).tobytes())
    writer.close()
    events = merged(tmp_path)["traceEvents"]
    tracks = [(event["tid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    way = ["encoded", "copied down", "queued", "sent", "received", "copied up", "decoded"]
    assert [name for _, name in sorted(tracks)] == ["ready", *way]
    spans = [event for event in events if event["ph"] == "X"]
    assert all(("server" in event["args"]) is (event["name"] in way[2:5]) for event in spans)
    drawn = [(label, len(found)) for label, found in _rows(spans)]
    assert drawn == [(f"rank 0 {name}", 2) for name in way]


@needs_software_driver
def test_the_engine_s_copies_are_in_it(tmp_path: Path) -> None:
    """Of a device that the host plays: each partition goes its way in order, of each round and after the program."""
    from byteps_like import _core
    from tests.unit.torch.devices.test_native_gpu import OneRank

    gpu, recorder = _core.Gpu(0, str(DRIVER)), Recorder()
    rank = OneRank(gpu)
    rank.engine.use_gpu(gpu)
    tensor = rank.declare(1)
    recorder.add_member(0, lambda: {"partitions": {1: ["gradients.0", 0], 2: ["gradients.0", 1]}, "groups": {}})
    recorder.take(RecordingOrder(str(tmp_path), 0, NEXT))
    recorder.begin()
    for number in range(3):
        rank.put(np.full(1024, number))
        assert rank.engine.wait_on_stream(rank.submit(tensor), rank.stream.handle)
        rank.get()
    recorder.remove_member(0)
    rank.close()
    names = ("ready", "copied down", "sent", "received", "copied up")
    events = [event for event in merge(tmp_path)["traceEvents"] if event["cat"] == "partition" and event["pid"] == 0]
    for part in (0, 1):
        stages = [
            [event for event in events if (event["name"], event["args"]["part"]) == (name, part)] for name in names
        ]
        for ready, down, sent, received, up in zip(*stages, strict=True):
            ends = [event["ts"] + event["dur"] for event in (ready, down, sent, received, up)]
            assert ends == sorted(ends) and up["ts"] >= ends[3]
            assert down["args"]["bytes"] == up["args"]["bytes"] == 2048
        assert len(stages[0]) == 3


def test_the_report_knows_the_answer(recorded: Path) -> None:
    analysis = Analysis(load(recorded)["traceEvents"])
    mean = {step.rank: (round(step.compute * 1e3), round(step.exposed * 1e3)) for step in analysis.steps}
    assert mean == {0: (21, 29), 1: (41, 9)}
    assert [set(step.waits) for step in analysis.steps if step.rank == 0] == [{("late rank", "rank 1")}] * 3
    assert [set(step.waits) for step in analysis.steps if step.rank == 1] == [{("server", "server 0")}] * 3
    assert analysis.straggler is not None
    rank, why, seconds = analysis.straggler
    assert (rank, why) == (1, "compute")
    assert seconds == pytest.approx(0.020)
    (service,) = analysis.servers
    assert (service.server, service.rounds) == (0, 3)
    assert service.seconds == pytest.approx(0.006)
    (slow,) = analysis.slowest()
    assert [slow.total, slow.queued, slow.sent, slow.others, slow.back] == pytest.approx(
        [0.02, 0.001, 0.003, 0.01, 0.006]
    )
    assert len(tables(analysis)) == 5
    assert verdict(analysis)[1].startswith("Straggler: rank 1: its gradients are ready 20.00 ms after")


def test_a_slow_link_is_told_from_slow_compute(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    rows = push_pull(0, 10, 12, 40, 0) + push_pull(1, 10, 38, 40, 0) + [record(RecordKind.WAIT, 0, 11, 40, key=9)]
    writer.records(np.concatenate(rows).tobytes())
    writer.close()
    analysis = Analysis(load(tmp_path)["traceEvents"])
    assert set(analysis.steps[0].waits) == {("slow link", "rank 1")}
    assert analysis.straggler is not None
    assert analysis.straggler[:2] == (1, "link")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("", RecordingOrder("d", NEXT, 0)),
        ("10:19", RecordingOrder("d", 10, 10)),
        ("7:7", RecordingOrder("d", 7, 1)),
        ("20", RecordingOrder("d", 0, 20)),
    ],
)
def test_steps_are_read(text: str, order: RecordingOrder) -> None:
    assert parse_steps("d", text) == order
    assert RecordingOrder.from_text(order.to_text()) == order


@pytest.mark.parametrize("text", ["0", "5:4", "x", "3:", "-1:2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="trace_steps"):
        parse_steps("d", text)


def test_the_shortest_round_trip_sets_the_clock() -> None:
    clock = Clock()
    clock.observe(0, 1_000_900, 2_000)
    clock.observe(10_000, 1_010_300, 10_400)
    assert (clock.offset().nanoseconds, clock.offset().error, clock.offset().correction) == (1_000_100, 200, 1_000_100)
    same = Clock()
    same.observe(0, 700, 1_000)  # within half a round trip: the same clock
    assert same.offset().correction == 0


def test_a_part_is_read_as_far_as_it_was_written(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.json("process", pid=1)
    writer.json("lost", value=2)
    writer.close()
    whole = writer.path.read_bytes()
    counts = []
    for length in range(len(whole) + 1):
        writer.path.write_bytes(whole[:length])
        counts.append(len(list(read_chunks(writer.path))))
    assert counts[-1] == 2
    assert counts == sorted(counts)


def test_a_part_is_bounded_and_a_full_disk_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    writer = PartWriter(tmp_path, most_bytes=200)
    for _ in range(10):
        writer.records(bytes(64))
    assert not writer.open
    assert writer.path.stat().st_size <= 200
    full = PartWriter(tmp_path / "full")
    full.close()
    full._descriptor = Path("/dev/full").open("wb", buffering=0).fileno()  # noqa: SIM115
    assert "largest size" in caplog.text
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert not PartWriter(blocked / "below").open
    assert caplog.text.count("the job continues") == 2


def test_nothing_to_merge_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="BYTEPS_LIKE_TRACE"):
        merge(tmp_path)
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(InvalidArgumentError, match="is not a trace"):
        load(tmp_path / "other.json")


def test_recording_begins_and_ends_between_steps(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.event("step", "before", 0, 1)
    recorder.take(RecordingOrder(str(tmp_path / "trace.json"), 2, 2))
    seen = []
    for _ in range(6):
        recorder.event("step", f"step {recorder.steps}", 0, 1, step=recorder.steps)
        seen.append(recorder.active)
        recorder.step()
    assert seen == [False, False, True, True, False, False]
    (path,) = (tmp_path / "trace.json.parts").glob("*.part")
    chunks = [chunk for kind, chunk in read_chunks(path) if kind == "J" and chunk["what"] == "events"]
    assert [event[1] for chunk in chunks for event in chunk["events"]] == ["step 2", "step 3"]


def test_the_page_needs_nothing_else(recorded: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing is optional")
    from byteps_like.timeline.page import write_page

    target = recorded / "report.html"
    write_page(Analysis(load(recorded)["traceEvents"]), target, "a <trace>")
    page = target.read_text()
    assert "Timeline of a &lt;trace&gt;" in page
    assert "Straggler: rank 1" in page
    assert page.count("<table>") == 5
    assert base64.b64decode(page.partition("base64,")[2].partition('"')[0]).startswith(b"\x89PNG")
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


_KILLED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner may have left it ignored
from byteps_like.timeline.orders import RecordingOrder
from byteps_like.timeline.recorder import recorder
recorder.take(RecordingOrder(sys.argv[1]))
recorder.event("step", "step 0", time.monotonic_ns(), 1000, step=0)
print("recorded", flush=True)
while True:  # a signal that comes just before a blocking call doesn't end that call
    time.sleep(0.02)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.processes
def test_what_a_killed_process_has_seen_is_there(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"recorded\n"
        deadline = time.monotonic() + 20
        while number == signal.SIGKILL and not any(b"step 0" in part.read_bytes() for part in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
        process.send_signal(number)
        process.wait(20)
    assert [event["name"] for event in merge(tmp_path)["traceEvents"]] == ["step 0"]


def test_a_recording_ordered_from_elsewhere_is_written_where_this_process_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(recorder, "take", lambda order: taken.append(order.path))
    for name in ("work", "temporary", "root", "trace", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    session: Any = object.__new__(Session)
    session._config = Config(trace_root=str(tmp_path / "root"), trace=str(tmp_path / "trace"))
    inside = [
        "t",
        "deep/er",
        *(str(tmp_path / name / "t") for name in ("work", "temporary", "root")),
        str(tmp_path / "trace"),
    ]
    for path in inside:
        session._obey(RecordingOrder(path).to_text())
    assert taken == inside and not caplog.messages
    outside = [str(tmp_path / "elsewhere" / "t"), "../elsewhere", "link/t", "/", str(tmp_path / "rooted"), "a\0b"]
    for path in outside:
        session._obey(RecordingOrder(path).to_text())
    assert taken == inside
    assert len(caplog.messages) == len(outside)
