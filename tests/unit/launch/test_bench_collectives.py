"""The benchmark of collectives: what it counts, what it checks results against, and a run of it with gloo alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from byteps_like.bench.board import Board
from byteps_like.bench.buffers import Buffers, pattern
from byteps_like.bench.collectives import Options, run
from byteps_like.bench.contenders import direct_jobs
from byteps_like.bench.openmpi import Components, Settings, fastest
from byteps_like.bench.plan import DIRECT, GLOO, OPERATIONS, BenchPlan, Case
from byteps_like.bench.start import why_no_deepspeed
from byteps_like.cli.bench import app, parse_bytes
from byteps_like.errors import ConfigError, SystemCallError

RANKS = 3


def test_sizes_and_bytes_on_the_bus() -> None:
    assert Options(least=8, most=600, factor=8).sizes() == [8, 64, 512]
    assert Case("all_reduce", 8, True, "private").elements(3) == 3
    assert Case("all_reduce", 48, True, "private").elements(3) == 12
    factors = {operation: Case(operation, 8, True, "private").moved(4) for operation in OPERATIONS}
    assert factors["all_reduce"] == 1.5 and factors["all_gather"] == factors["all_to_all"] == 0.75
    assert factors["broadcast"] == factors["send_recv"] == 1


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("64k", 65536), ("256M", 256 << 20), ("1GB", 1 << 30)])
def test_sizes_are_read(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("wrong", [{"operations": ["allreduce"]}, {"ranks": 1}, {"rivals": ["nccl"]}, {"factor": 1}])
def test_what_can_t_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Options(**wrong).check()  # type: ignore[arg-type]
    assert CliRunner().invoke(app, ["--min", "1x"]).exit_code == 2


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "barrier"])
@pytest.mark.parametrize("in_place", [True, False])
def test_direct_jobs_leave_what_is_expected(operation: str, in_place: bool) -> None:
    if in_place and operation in ("all_to_all", "send_recv"):
        pytest.skip("has no direct form in place")
    case = Case(operation, 240, in_place, "private")
    everybody = [Buffers.make(case, rank, RANKS, lambda count: torch.empty(count)) for rank in range(RANKS)]
    for buffers in everybody:
        if operation == "broadcast":
            buffers.source.copy_(pattern(buffers.source.numel(), buffers.rank))
            buffers.target.copy_(buffers.source)
        else:
            buffers.fill()
    assert any(buffers.wrong() for buffers in everybody)
    for rank in range(RANKS):
        for targets, sources in direct_jobs(everybody, rank):
            result = torch.stack(sources).sum(0)
            for target in targets:
                target.copy_(result)
    assert [buffers.wrong() for buffers in everybody] == [0] * RANKS


def test_cases_leave_out_what_is_no_choice() -> None:
    plan = BenchPlan(2, ["broadcast", "send_recv", "barrier"], [8], [True, False], ["private"], [GLOO], 0.1, "")
    assert [(case.operation, case.in_place) for case in plan.cases()] == [
        ("broadcast", True), ("send_recv", False), ("barrier", True),
    ]  # fmt: skip


def test_the_board_agrees_on_the_largest(tmp_path: Path) -> None:
    found: list[float] = []

    def rank(number: int) -> None:
        board = Board(str(tmp_path), number, RANKS)
        found.extend(board.most(number + turn) for turn in range(20))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == sorted([RANKS - 1 + turn for turn in range(20)] * RANKS)


@pytest.mark.processes
def test_gloo_and_the_limit_are_measured_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(
        ["all_reduce", "barrier"], least=4096, most=4096, memory=["private"], doors=[], rivals=[GLOO], seconds=0.01,
        json=tmp_path / "lines.jsonl", plots=tmp_path, timeout=90,
    )  # fmt: skip
    rows = run(options)
    measured = {(row["operation"], row["contender"]) for row in rows if "seconds" in row}
    assert measured == {(operation, name) for operation in ("all_reduce", "barrier") for name in (GLOO, DIRECT)}
    assert all(0 < row["p10"] <= row["seconds"] <= row["p90"] for row in rows if "seconds" in row)
    assert [row["why"] for row in rows if "why" in row] == ["torch.distributed reduces in place"]
    lines = [json.loads(line) for line in options.json.read_text().splitlines()]
    assert len(lines) == len(rows) and {"commit", "machine", "versions", "config"} <= set(lines[0])
    assert list(tmp_path.glob("all_reduce-2-*.png"))
    assert "bus GB/s" in capsys.readouterr().out


OMPI_INFO = """package:Open MPI root@host Distribution
ompi:version:full:{version}
ompi:version:repo:v{version}
mca:btl:sm:version:"component:{version}"
mca:smsc:cma:version:"component:{version}"
mca:coll:basic:version:"component:{version}"
mca:coll:tuned:version:"mca:2.1.0"
mca:coll:tuned:version:"component:{version}"
{more}"""


def test_the_components_of_openmpi_are_found_and_what_is_missing_is_said() -> None:
    old = Components.parse(OMPI_INFO.format(version="5.0.11", more=""))
    assert old.choices() == {"its own choice": {}, "tuned": {"coll_tuned_priority": "100"}}
    assert "5.0.11" in str(old) and "smsc: cma" in str(old) and "no coll/xhc" in str(old)
    new = Components.parse(OMPI_INFO.format(version="6.0.0", more='mca:coll:xhc:version:"component:6.0.0"'))
    assert list(new.choices()) == ["its own choice", "xhc", "tuned"]
    assert new.choices()["xhc"] == {"coll_xhc_priority": "100"} and "xhc" not in str(new)
    assert Components.parse("").choices() == {"its own choice": {}}


def test_openmpi_takes_part_with_the_fastest_component_that_works() -> None:
    choices: dict[str, Settings] = {"its own choice": {}, "xhc": {"x": "1"}, "sm": {"s": "1"}, "han": {"h": "1"}}

    def seconds(settings: Settings) -> float:
        if "x" in settings:
            raise SystemCallError("mpirun ended with 1")
        return {"s": 1.0, "h": 1.5}.get(next(iter(settings), ""), 2.0)

    settings, tried = fastest(choices, seconds)
    assert settings == {"s": "1"}
    assert tried == "taken: sm; times relative to it: its own choice 2.00, xhc fails, sm 1.00, han 1.50"
    with pytest.raises(SystemCallError):
        fastest({"xhc": {"x": "1"}}, seconds)


def test_deepspeed_takes_part_only_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install" in why_no_deepspeed(in_lab=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "deepspeed" else None)
    assert why_no_deepspeed(in_lab=False) == ""
    assert "one host" in why_no_deepspeed(in_lab=True)
