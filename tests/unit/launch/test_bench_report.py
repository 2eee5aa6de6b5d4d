"""The arithmetic that the benchmarks' claims stand on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import report
from bench.servers import route
from bench.servers.push_pull import Setup, rows
from bench.servers.push_pull_plan import OURS, RIVAL, Operation
from bench.servers.system_calls import read_report


def test_spread_is_median_and_quartiles() -> None:
    spread = report.Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.median, spread.low, spread.high, spread.count) == (3.0, 2.0, 4.0, 5)
    assert spread.relative == pytest.approx(2 / 3)
    assert report.Spread.of([2.0, 1.0]) == report.Spread(1.5, 1.0, 2.0, 2)


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    calls: list[str] = []

    def contender(name: str, time: float) -> float:
        calls.append(name)
        return time + len(calls)

    times = report.interleave({"a": lambda: contender("a", 10), "b": lambda: contender("b", 20)}, 2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert times == {"a": [13, 15], "b": [24, 26]}


@pytest.mark.processes
def test_each_line_of_json_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    report.write_json_lines(path, {"size": 4}, [{"seconds": 1.0}])
    report.write_json_lines(path, {"size": 8}, [{"seconds": 2.0}])
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["seconds"] == 1.0 and second["config"] == {"size": 8}
    assert first["machine"]["cores"] >= 1 and first["versions"]["python"] and first["commit"]


@pytest.mark.parametrize(
    ("servers", "limit"),
    [(0, 1.5), (1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)],  # n·M/(k·B) while the servers' links are the busiest, else M/B
)
def test_limit_of_a_shaped_line_is_its_busiest_link(servers: int, limit: float) -> None:
    setup = Setup(workers=4, servers=servers, rate="1gbit", goodput=100.0)
    assert setup.limit(100) == limit
    assert setup.rival_limit(100) == 1.5


def test_an_operation_lasts_from_the_last_start_to_the_last_end() -> None:
    def turn(start: float, end: float, contender: str) -> Operation:
        return Operation(contender, "arena", 64, 1, start, end, payload_sent=int(end))

    slow, fast = [turn(0, 7, OURS), turn(20, 21, RIVAL)], [turn(2, 5, OURS), turn(20, 24, RIVAL)]
    ours, rival = rows(Setup(2, 1, "1gbit", 1.0), [slow, fast])
    assert (ours["contender"], ours["seconds"], ours["payload_sent"]) == (OURS, 5, 7)
    assert (rival["contender"], rival["seconds"]) == (RIVAL, 4)


def test_what_a_burst_takes_is_told_for_one_of_its_operations() -> None:
    ranks = [[Operation(OURS, "arena", 64, 4, 0.0, end, payload_sent=256, look=look, sleeps=6, processor=1e-6)
              for look in ("", "use")] for end in (1.0, 2.0)]  # fmt: skip
    (row,) = rows(Setup(2, 1, "1gbit", 1.0), ranks)
    assert (row["seconds"], row["payload_sent"], row["sleeps"]) == (0.5, 64, 3)
    assert row["processor"] == pytest.approx(1e-6 / 256)


def test_the_table_of_the_server_route_has_the_rival_beside_and_counts_copies_and_calls() -> None:
    def ranks(contender: str, end: float, calls: int) -> list[list[Operation]]:
        timed = Operation(
            contender, "private", 1024, 2, 0.0, end, payload_sent=2048, payload_received=2048, bounced=4096
        )
        counted = Operation(contender, "private", 1024, 4, look="calls", calls=calls)
        return [[timed, replace(timed, look="use", sleeps=3), counted]]

    found = [row for one in (ranks(OURS, 2.0, 20), ranks(RIVAL, 8.0, 80)) for row in rows(Setup(1, 1, "", None), one)]
    (line,) = route.lines([{**row, "workers": 1, "servers": 1, "transport": "tcp"} for row in found])
    assert line[:7] == ("1 + 1", "tcp", "private", "1 KB", "1.000 s", "4.000 s", "4.00")
    assert line[9:14] == ("6", "5.0", "20.0", "1.5", "1.5")
    assert route.markdown([line]).count("\n") == 3


def test_perf_says_how_many_calls_there_were_or_that_it_could_not_count() -> None:
    assert read_report("# started\n\n1244,,raw_syscalls:sys_enter,100,100.00,,\n") == 1244
    assert read_report("<not supported>,,raw_syscalls:sys_enter,0,0.00,,\n") is read_report("") is None


def test_ranks_that_did_different_things_are_noticed() -> None:
    with pytest.raises(RuntimeError, match="same operations"):
        list(rows(Setup(2, 1, "none", 1.0), [[Operation(OURS, "arena", 64)], [Operation(RIVAL, "arena", 64)]]))


@pytest.mark.parametrize(
    ("value", "text"), [(2.5e-6, "2.5 µs"), (0.0321, "32.1 ms"), (0.9999, "1.000 s"), (2.34567, "2.346 s")]
)
def test_times_are_shown_in_the_unit_that_fits(value: float, text: str) -> None:
    assert report.show_time(value) == text
    assert report.show_bytes(1 << 16) == "64 KB" and report.show_bytes(1 << 28) == "256 MB"


def test_a_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    report.plot_lines(path, "title", ("x", "y"), {"a": ([1.0, 2.0], [3.0, 4.0])})
    assert path.read_bytes().startswith(b"\x89PNG")
