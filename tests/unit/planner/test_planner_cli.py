"""`byteps-like plan`, workloads from traces, and calibrations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from byteps_like.cli.plan import app, parse_counts, routed
from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.calibrate import Calibration, calibrate
from byteps_like.planner.cluster import GOODPUT, Cluster, ClusterCosts, Settings
from byteps_like.planner.predict import predict
from byteps_like.planner.study import study
from byteps_like.planner.trace import from_trace
from byteps_like.planner.workload import Layer, Workload
from byteps_like.worker.local import LocalWorker

TWO = Workload(
    "two",
    (Layer("a", (("a.w", (250_000,)),), 0.001, 0.002), Layer("b", (("b.w", (750_000,)),), 0.003, 0.006)),
    8,
    "images",
)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_row_for_each_number_of_servers(tmp_path: Path) -> None:
    TWO.save(tmp_path / "two.json")
    text = run("--model", str(tmp_path / "two.json"), "-n", "4", "--servers", "0,1,4", "--gbps", "1")
    assert "two, 4 MB of gradients, 12.0 ms of compute; 4 workers, 0.96 Gb/s of payload" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["0", "1", "4"]
    assert "server links" in text


def test_json_says_what_the_simulation_found(tmp_path: Path) -> None:
    TWO.save(tmp_path / "two.json")
    picture = tmp_path / "two.svg"
    text = run(
        "--model", str(tmp_path / "two.json"), "-n", "4", "-s", "2", "--gbps", "1", "--json", "--plot", str(picture)
    )
    (row,) = json.loads(text)["rows"]
    expected = predict(Cluster(4, 2, rate=GOODPUT), TWO)
    assert row["step"] == pytest.approx(expected.step)
    assert row["efficiency"] == pytest.approx(0.012 / expected.step)
    assert row["one_more"] == pytest.approx(predict(Cluster(4, 3, rate=GOODPUT), TWO).step)
    assert row["twice_the_rate"] < 0.7 * row["step"]
    assert row["half_the_bytes"] < 0.7 * row["step"]
    assert picture.read_text().lstrip().startswith("<?xml")


def test_a_shipped_model_is_scaled_by_batch_and_flops() -> None:
    text = run("--model", "resnet50", "--batch", "10", "--flops", "1e12", "-n", "2", "-s", "1", "--gbps", "100")
    assert "resnet50, 102 MB of gradients, 243.0 ms of compute" in text


def test_routes() -> None:
    assert routed([0, 2], "auto", False) == [0, 2]
    assert routed([0, 2], "servers", False) == [2]
    assert routed([0, 2], "servers", True) == [0, 2]
    assert routed([1, 2], "allreduce", False) == [0]
    for counts, route, beside in (([0], "servers", False), ([0], "allreduce", True), ([0], "ring", False)):
        with pytest.raises(InvalidArgumentError, match=f"--route {route}"):
            routed(counts, route, beside)


def test_wrong_words_are_told() -> None:
    assert parse_counts("0,8,16") == [0, 8, 16]
    assert parse_counts("0..3") == [0, 1, 2, 3]
    assert parse_counts("0..32")[0] == 0
    assert parse_counts("0..32")[-1] == 32
    for text in ("x", "3..1", "-1"):
        with pytest.raises(InvalidArgumentError, match=r"write 4, 0\.\.32 or"):
            parse_counts(text)
    with pytest.raises(InvalidArgumentError, match="give exactly one workload"):
        run("-n", "4")


def test_what_more_would_buy_is_named_by_the_bottleneck() -> None:
    (slow,) = study(TWO, Cluster(4, rate=GOODPUT, costs=ClusterCosts(sum_rate=1e7)), [2], Settings())
    assert slow.prediction.bottleneck.startswith("server CPU")
    long = replace(TWO, layers=tuple(replace(layer, forward=1.0) for layer in TWO.layers))
    (fast,) = study(long, Cluster(4, rate=GOODPUT), [4], Settings())
    assert fast.prediction.bottleneck.startswith("compute, 9")
    assert fast.gain(fast.twice_the_rate) == pytest.approx(1.0, abs=0.05)


def event(category: str, ts: float, dur: float, rank: int = 0, name: str = "", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name or category, "ts": ts, "dur": dur, "pid": rank, "args": args}


def recorded(steps: int) -> dict[str, Any]:
    """Two layers; the second one's gradients fill two partitions, the first one's the last."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}}]
    for step in range(steps):
        t = 1e6 * step
        events += [
            event("forward", t, 1000, layer="a"), event("forward", t + 1000, 3000, layer="b"),
            event("backward", t + 4000, 6000, layer="b"), event("backward", t + 10000, 2000, layer="a"),
            event("forward", t, 9e9, rank=1, layer="a"),
        ]  # fmt: skip
        for part, ready in enumerate((9000.0, 10003.0, 12000.0)):
            args = {
                "tensor": "gradients",
                "part": part,
                "key": part,
                "round": step,
                "bytes": 1_000_000,
                "priority": part,
            }
            events.append(event("partition", t + ready, 0, name="ready", **args))
            events.append(event("partition", t + ready, 500, name="queued", **args))
    args = {"tensor": "parameters", "part": 0, "key": 9, "round": 0, "bytes": 5_000_000, "priority": 0}
    events.append(event("partition", 100.0, 0, name="ready", **args))  # a broadcast at the beginning
    return {"traceEvents": events, "otherData": {}}


def test_a_workload_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(recorded(3)))
    workload = from_trace(path)
    assert workload.name == "mine"
    assert [(layer.name, layer.nbytes) for layer in workload.layers] == [("a", 1_000_000), ("b", 2_000_000)]
    assert [layer.forward for layer in workload.layers] == pytest.approx([0.001, 0.003])
    assert [layer.backward for layer in workload.layers] == pytest.approx([0.002, 0.006])
    assert "mine, 3 MB of gradients, 12.0 ms of compute" in run("--trace", str(path), "-n", "2", "-s", "2")


@pytest.mark.parametrize("content", ["", "[]", '{"traceEvents": []}', '{"traceEvents": [1]}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InvalidArgumentError, match=r"x\.json is not a trace of training steps"):
        from_trace(path)


def test_calibrations_are_kept_and_used(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    found = Calibration(2.5e8, ClusterCosts(latency=1e-3, sum_rate=1e9))
    found.save(path)
    assert Calibration.read(path) == found
    TWO.save(tmp_path / "two.json")
    words = ["--model", str(tmp_path / "two.json"), "-n", "4", "-s", "2", "--costs", str(path), "--json"]
    expected = predict(Cluster(4, 2, rate=2.5e8, costs=found.costs), TWO)
    assert json.loads(run(*words))["rows"][0]["step"] == pytest.approx(expected.step)
    path.write_text("{}")
    with pytest.raises(InvalidArgumentError, match=r"costs\.json is not a calibration file"):
        Calibration.read(path)
    with pytest.raises(InvalidArgumentError, match="a job with servers"):
        calibrate(LocalWorker())
