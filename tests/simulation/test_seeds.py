"""Simulated jobs, as `byteps-like chaos --sim` runs them."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner, Result

from byteps_like._core import Sim
from byteps_like.cli.main import app
from byteps_like.errors import InvalidArgumentError

PLANTED = "never-resumes"


def chaos(*options: str) -> Result:
    return CliRunner().invoke(app, ["chaos", "--sim", *options], catch_exceptions=False)


def test_a_hundred_jobs_keep_the_rules():
    # Others than the native tests run.
    result = chaos("--seeds", "1000:1100", "-j", "2")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("100 jobs, 0 broken"), result.output


def test_a_seed_has_one_history_and_a_trace():
    shown = [chaos("--seed", "7") for _ in range(2)]
    assert shown[0].output == shown[1].output
    lines = shown[0].output.splitlines()
    assert lines[0].startswith("seed 7: ")
    heading = next(number for number, line in enumerate(lines) if line.strip().startswith("seconds"))
    times = [float(line.split()[0]) for line in lines[heading + 1 : -1]]
    assert times == sorted(times)
    assert re.search(r"history [0-9a-f]{16}$", lines[-1])


def test_a_job_can_be_stepped():
    job, whole = Sim(7), Sim(7)
    while job.step():
        pass
    whole.run()
    assert (job.history, job.events, job.complaints) == (whole.history, whole.events, [])
    assert job.seconds == whole.seconds > 0


def test_a_planted_defect_is_found_replayed_and_made_smaller():
    found = chaos("--seeds", "0:100", "--defect", PLANTED, "-j", "1")
    assert found.exit_code == 1
    seed = re.search(r"^seed (\d+): ", found.output, flags=re.MULTILINE)
    assert seed and f"--seed SEED --defect {PLANTED}" in found.output
    replayed = chaos("--seed", seed[1], "--defect", PLANTED)
    small = chaos("--seed", seed[1], "--defect", PLANTED, "--shrink")
    assert "BROKEN: " in replayed.output and "BROKEN: " in small.output
    assert small.exit_code == 1 and len(small.output) < len(replayed.output)
    assert chaos("--seed", seed[1]).exit_code == 0


def test_defects_are_listed():
    names = chaos("--defect", "list").output.split()
    assert names == Sim.defects() and PLANTED in names


@pytest.mark.parametrize("seeds", ["5", "5:", "9:3", "a:b", "3:3"])
def test_a_bad_range_is_an_error(seeds: str):
    with pytest.raises(InvalidArgumentError, match=r"FIRST:LAST"):
        chaos("--seeds", seeds)


def test_an_unknown_defect_is_an_error():
    with pytest.raises(InvalidArgumentError, match="no defect"):
        chaos("--seed", "1", "--defect", "nonsense")
