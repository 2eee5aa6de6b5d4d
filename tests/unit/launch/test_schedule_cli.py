"""`byteps-like schedule`, the pictures, and that docs/reference/algorithms.md says what there is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from byteps_like.cli.main import app
from byteps_like.cli.schedule import layout_of
from byteps_like.collectives import library
from byteps_like.collectives.planning import timeline
from byteps_like.collectives.schedules import count
from byteps_like.collectives.schedules.builder import Task
from byteps_like.collectives.schedules.check import check
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.errors import InvalidArgumentError

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "reference" / "algorithms.md"
GUIDE = DOCS / "how-to" / "add-an-algorithm.md"


def run(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["schedule", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_prints_rounds_and_counts(tmp_path: Path) -> None:
    text = run("show", "ring", "-n", "4", "--svg", str(tmp_path / "ring.svg"))
    assert re.search(r"3\s+\+1→1!\s+\+2→2!\s+\+3→3!\s+\+0→0!", text), "the last reductions complete the sum"
    assert re.search(r"2\s+2\s+12\s+6\s+3/2\s+3/2\s+0", text)
    assert "all_reduce by ring, 4 ranks: checked, 6 rounds, 24 messages" in text
    document = ElementTree.parse(tmp_path / "ring.svg").getroot()
    heads = document.findall("{http://www.w3.org/2000/svg}path")
    assert len(heads) == 24 + 4, "an arrow for each message, two heads where a sum is complete"


def test_every_algorithm_can_be_drawn(tmp_path: Path) -> None:
    for row in library.algorithms():
        name = row.name + (":1" if row.name == "multi_ring" else "")
        file = tmp_path / "one.svg"
        run("show", name, "--kind", row.kind, "--hosts", "3x3", "--svg", str(file))
        ElementTree.parse(file)


def test_messages_are_in_rounds() -> None:
    layout = Layout((0, 0, 1, 1))
    schedules = [library.rank_schedule(Kind.ALL_TO_ALL, "2dh", rank, layout) for rank in range(4)]
    found = timeline.messages(Kind.ALL_TO_ALL, schedules)
    assert [message.label for message in found if message.source == 0] == ["0>1 0>3", "0>2 1>2"]
    assert [message.round for message in found] == [1] * 4 + [2] * 4


def test_list_says_what_cannot_be_had() -> None:
    text = run("list", "-n", "4")
    assert re.search(r"all_to_all\s+2dh\s+one rank on each host", text)
    assert re.search(r"all_reduce\s+ring\s+6\s+6\s+3/2", text)


def test_explain() -> None:
    assert run("explain", "all_reduce", "1000", "--hosts", "1x4").startswith("all_reduce of 1000 bytes on 4 ranks")


@pytest.mark.parametrize("text, hosts", [("2x3", (0, 0, 0, 1, 1, 1)), ("3,1", (0, 0, 0, 1)), ("", (0, 1))])
def test_layouts(text: str, hosts: tuple[int, ...]) -> None:
    assert layout_of(2, text).hosts == hosts


@pytest.mark.parametrize("text", ["x", "2x", "0x3", "a,b", "3,0"])
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="2x4"):
        layout_of(2, text)


def test_the_page_has_a_row_for_every_algorithm() -> None:
    rows = set()
    kinds: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        heading = re.match(r"\| ([a-z, -]+) \| rounds", line)
        if heading:
            kinds = [part.strip().replace("-", "_") for part in heading[1].split(",")]
        elif line.startswith("| `"):
            rows |= {(kind, re.match(r"\| `([a-z0-9_]+)", line)[1]) for kind in kinds}  # type: ignore[index]
    assert rows == {(str(row.kind), row.name) for row in library.algorithms()}


def test_the_guides_example_is_a_whole_algorithm() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    for size in (1, 2, 5):
        tasks = [Task(rank, Layout(tuple(range(size)))) for rank in range(size)]
        schedules = [names["all_gather"](task) for task in tasks]
        graph = check(Kind.ALL_GATHER, schedules)
        assert count.measured(schedules, graph) == names["all_gather_cost"](tasks[0])
