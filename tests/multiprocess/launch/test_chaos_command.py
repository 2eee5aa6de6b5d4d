"""`byteps-like chaos` on real processes: what it kills, how the job goes on, and what makes it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 150.0

# Not a member of anything: what is seen of it is what it prints.
COUNTING = """
import os, pathlib, sys, time
count = pathlib.Path(sys.argv[1])
def step():
    now = int(count.read_text() or 0) if count.exists() else 0
    (new := count.with_suffix(f".{os.getpid()}")).write_text(str(now + 1))
    new.rename(count)
    print("step", now + 1, flush=True)
    time.sleep(0.05)
    return now + 1
"""


def chaos(folder: Path, options: str, *command: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """One run, and its report."""
    report = folder / "report.json"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "OMP_"))}
    result = subprocess.run(
        [sys.executable, "-m", "byteps_like", "chaos", *options.split(), "--json", str(report), "--", *command],
        env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return result, json.loads(report.read_text()) if report.exists() else {}


def counting(folder: Path, loop: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", COUNTING + loop, str(folder / "count")]


def test_a_job_goes_on_whoever_is_killed(tmp_path: Path) -> None:
    """The sums that it makes are looked at element by element."""
    options = "--minutes 0.4 --calm 3 --every 3:4 --spawn 0.7 -n 3 -s 2 --min-workers 1 --seed 2"
    result, report = chaos(tmp_path, options)
    assert result.returncode == 0, result
    killed = [blow["part"]["role"] for blow in report["blows"]]
    assert set(killed) == {"worker", "server", "scheduler"}, result
    assert report["steps"] > 50 and report["seconds"] == pytest.approx(24, abs=10)
    assert report["deaths"] == [] and report["stuck"] == ""
    for role in ("worker", "server"):
        assert result.stderr.count(f"byteps-like: {role}") >= killed.count(role), result
    assert "another one goes on where it stopped" in result.stderr
    assert f"killed {killed.count('worker')} workers" in result.stdout


def test_the_same_seed_kills_the_same(tmp_path: Path) -> None:
    """Where there are as many, as whoever was killed is there again before the next one is."""
    options = "--minutes 0.06 --calm 0.2 --every 0.5 --kinds worker --spawn 1 -n 4 -s 0 --min-workers 1 --seed 9"
    found = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        result, report = chaos(folder, options, *counting(folder, "while True: step()"))
        assert result.returncode == 0, result
        found.append([blow["part"] for blow in report["blows"]])
    shorter = min(map(len, found))
    assert shorter >= 5 and found[0][:shorter] == found[1][:shorter]


def test_a_job_that_comes_to_its_end_is_left_alone(tmp_path: Path) -> None:
    options = "--minutes 5 --calm 0.2 --every 0.3 --kinds worker --spawn 0.5 -n 3 -s 0 --min-workers 1"
    result, report = chaos(tmp_path, options, *counting(tmp_path, "while step() < 200: pass"))
    assert result.returncode == 0, result
    assert report["blows"] and report["steps"] >= 200 and report["seconds"] < 60


def test_a_gap_beyond_its_bound_fails(tmp_path: Path) -> None:
    loop = "while True: time.sleep(1.5 if step() == 20 else 0)"
    options = "--minutes 0.1 --calm 1 --every 100 -n 1 -s 0 --min-workers 1 --max-gap 1"
    result, report = chaos(tmp_path, options, *counting(tmp_path, loop))
    assert result.returncode == 1 and 1.4 < report["gap"] < 10, result
    assert "BROKEN: the longest gap of" in result.stdout


def test_a_worker_that_fails_by_itself_fails_the_test(tmp_path: Path) -> None:
    loop = "while True:\n    if step() == 20: raise ValueError('wrong')"
    options = "--minutes 0.1 --calm 1 --every 100 -n 2 -s 0 --min-workers 1"
    result, report = chaos(tmp_path, options, *counting(tmp_path, loop))
    assert result.returncode == 1, result
    assert "BROKEN: nobody has killed worker" in result.stdout and "ValueError: wrong" in result.stdout
    assert report["exit_code"] == 0, "the job itself went on"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "say either --sim or --minutes"),
        ("--sim --minutes 1", "say either --sim or --minutes"),
        ("--minutes 1 --every 2:1", "'2:1' is not FROM:TO in seconds"),
        ("--minutes 1 --every often", "'often' is not FROM:TO in seconds"),
        ("--minutes 1 --kinds worker,rank", "'rank' is none of worker,server,scheduler"),
        ("--minutes 1 -n 2 --min-workers 3", "3 is more than -n 2"),
        ("--minutes 1 -n 11", "the sums are of 10 workers at most"),
        ("--minutes 1 --steps step", "'step' has 0 groups, not one"),
        ("--minutes 1 --steps (", "missing )"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: str, message: str) -> None:
    result, _ = chaos(tmp_path, options)
    assert result.returncode == 2 and message in " ".join(result.stderr.replace("│", " ").split()), result
