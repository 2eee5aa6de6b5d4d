"""What runs PyTorch's own tests: cases that fail, hang or die are told apart, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.torch_suite.__main__ import Suite
from tests.torch_suite.shipped import Name

ROOT = Path(__file__).resolve().parents[4]

CASES = """
import os, sys, time
from tests.torch_suite.cases import Case, outcomes

def hang():
    child = os.fork()
    if child:
        open(sys.argv[1], "w").write(str(child))
        print("a line before", flush=True)
    time.sleep(60)

cases = [
    Case("good", lambda: ("passed", ""), 30.0),
    Case("hangs", hang, 2.0),
    Case("dies", lambda: os.abort(), 30.0),
    Case("bad", lambda: ("failed", "why"), 30.0),
]
for case, (kind, text), printed, seconds in outcomes(cases, 2):
    print(case.name, kind, text, printed.strip(), seconds < 20, sep="|")
"""


@pytest.mark.processes
def test_what_becomes_of_cases(tmp_path: Path) -> None:
    note = tmp_path / "child"
    run = subprocess.run(
        [sys.executable, "-c", CASES, str(note)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert sorted(run.stdout.splitlines()) == [
        "bad|failed|why||True",
        "dies|died|its process has ended without a word||True",
        "good|passed|||True",
        "hangs|hung|no end within 2 s|a line before|True",
    ]
    child = Path(f"/proc/{note.read_text()}/stat")
    assert not child.exists() or ") Z " in child.read_text()


def test_a_run_is_bad_by_failures_that_are_not_listed_and_by_entries_that_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    suite = Suite(cast(Any, None), Namespace(verbose=False), {"stale": "why", "known": "why"})
    for name, kind in (("stale", "passed"), ("known", "failed"), ("new", "hung"), ("good", "passed")):
        suite.count(name, kind, "", f"what {name} said", 1.0)
    assert suite.bad == ["stale passes: take it out of excluded.toml", "new hung"]
    assert capsys.readouterr().out == "--- new ---\nwhat new said\n"


def test_a_name_equals_that_of_its_kind() -> None:
    name = Name("byteps", "gloo")
    assert name == "byteps" and name == "gloo" and name != "nccl"
    assert name.upper() == "BYTEPS" and hash(name) == hash("byteps") and name is not None and name != 3
