"""Which workers an elastic job's launcher starts, where, and what it does when its discovery script fails."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.calls import leaving
from byteps_like.errors import ConfigError
from byteps_like.launch.elastic import discovery, remote
from byteps_like.launch.elastic.discovery import Discovery
from byteps_like.launch.elastic.slots import DEATHS_SECONDS, MOST_DEATHS, REST_SECONDS, Slots


def begin(slots: Slots, now: float = 0.0) -> list[tuple[int, str]]:
    """Starts all that are due."""
    due = slots.due(now)
    for slot in due:
        slots.began(slot)
    return [(slot.number, slot.host) for slot in due]


def test_slots_are_filled_up_to_the_most() -> None:
    slots = Slots(3)
    slots.follow({"a": 2, "b": 2})
    assert begin(slots) == [(0, "a"), (1, "a"), (2, "b")]
    assert begin(slots) == []
    slots.ended(next(one for one in slots._slots.values() if one.number == 1), 5.0)
    assert begin(slots, 5.0) == [(1, "a")]


def test_a_slot_rests_after_three_deaths_within_a_minute() -> None:
    slots = Slots(1)
    slots.follow({"a": 1})
    (slot,) = slots.due(0.0)
    for at in (0.0, 59.0, 61.0):  # the first is too long ago
        slots.began(slot)
        assert not slots.ended(slot, at)
    slots.began(slot)
    assert slots.ended(slot, 62.0)
    assert slots.due(62.0 + REST_SECONDS - 1) == []
    assert slots.due(62.0 + REST_SECONDS) == [slot]


def test_slots_of_hosts_that_go_are_named_and_keep_their_numbers() -> None:
    slots = Slots(9)
    slots.follow({"a": 1, "b": 1})
    begin(slots)
    assert [(slot.number, slot.host) for slot in slots.follow({"b": 1, "c": 1})] == [(0, "a")]
    assert slots.follow({"b": 1, "c": 1}) == []
    assert begin(slots) == [(2, "c")]
    slots.ended(next(iter(slots._slots.values())), 9.0)
    assert begin(slots, 9.0) == []
    slots.follow({"a": 1})
    assert begin(slots, 9.0) == [(0, "a")]


def test_nobody_is_started_when_the_job_is_done() -> None:
    slots = Slots(2)
    slots.follow({"a": 2})
    slots.close()
    assert slots.due(0.0) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 40.0)), max_size=60), st.integers(1, 4))
def test_no_slot_sees_more_deaths_in_a_minute_than_it_may(deaths: list[tuple[int, float]], most: int) -> None:
    slots, now = Slots(most), 0.0
    slots.follow({"a": 2, "b": 2})
    died: dict[int, list[float]] = {}
    for number, pause in deaths:
        now += pause
        begin(slots, now)
        assert slots.busy() <= most
        slot = next(one for one in slots._slots.values() if one.number == number)
        if slot.busy:
            slots.ended(slot, now)
            died.setdefault(number, []).append(now)
    for times in died.values():
        for first, last in zip(times, times[MOST_DEATHS:], strict=False):
            assert last - first > DEATHS_SECONDS


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes one, which may be running."""

    def write(text: str) -> str:
        path, new = tmp_path / "hosts.sh", tmp_path / "new.sh"
        new.write_text(f"#!/bin/sh\n{text}\n")
        new.chmod(0o755)
        new.replace(path)
        return str(path)

    return write


@pytest.mark.processes
def test_hosts_are_what_the_script_prints(script: Callable[[str], str]) -> None:
    assert discovery.ask(script("echo a:4; echo b; echo a:1; echo [::1]:2")) == {"a": 5, "b": 1, "[::1]": 2}
    assert discovery.ask(script("true")) == {}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "message"),
    [("echo a:many", "'a:many' is not host:slots"), ("echo no such cloud >&2; exit 3", "exit code 3: no such cloud")],
)
def test_a_script_that_fails_at_first_is_a_mistake(script: Callable[[str], str], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Discovery(script(text), 0.01)
    with pytest.raises(ConfigError, match="No such file"):
        discovery.ask("/no/such/script")


@pytest.mark.processes
def test_a_script_that_never_answers_is_given_up(script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=r"no answer within 0\.1 s"):
        discovery.ask(script("exec sleep 30"))


def until(so: Callable[[], bool]) -> None:
    """Blocks until it is so."""
    end = time.monotonic() + 20
    while not so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.processes
def test_the_last_good_list_holds(script: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    found = Discovery(script("echo a:4"), 0.01)
    found.start()
    script("exit 1")
    until(lambda: "the hosts that were found last are kept" in caplog.text)
    assert found.hosts == {"a": 4}
    script("echo a:3")
    until(lambda: found.hosts == {"a": 3})
    found.stop()


def test_the_command_is_one_word_of_the_template() -> None:
    words = remote.start_command("ssh -p 22 {host} {command}", "node1", ["python", "a b.py"])
    assert words[:4] == ["ssh", "-p", "22", "node1"]
    assert shlex.split(words[4])[:3] == ["cd", str(Path.cwd()), "&&"]
    assert words[4].endswith(shlex.join([sys.executable, "-m", remote.__name__, "python", "a b.py"]))
    assert remote.is_here("localhost") and not remote.is_here("node1")


@pytest.mark.processes
def test_the_environment_and_the_secret_come_by_standard_input(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    environment = {"BYTEPS_LIKE_SECRET_FILE": str(secret), "BYTEPS_LIKE_JOB": "j", "HOME": "/nowhere"}
    told = remote.told(environment)
    assert json.loads(told) == {"BYTEPS_LIKE_SECRET": "hush", "BYTEPS_LIKE_JOB": "j"}
    code = "import os, sys; print(os.environ['BYTEPS_LIKE_SECRET'], os.environ['BYTEPS_LIKE_JOB']); sys.exit(7)"
    process = subprocess.Popen(
        [sys.executable, "-m", remote.__name__, sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(told)
    process.stdin.flush()
    assert process.wait(20) == 7
    assert process.stdout.read() == b"hush j\n"
    process.stdin.close()
    process.stdout.close()


@pytest.mark.processes
def test_a_remote_worker_ends_with_its_launcher(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    process = subprocess.Popen([sys.executable, "-m", remote.__name__, "sleep", "60"], stdin=subprocess.PIPE)
    process.communicate(remote.told({"BYTEPS_LIKE_SECRET_FILE": str(secret)}), timeout=20)
    assert process.returncode == 128 + 15


@pytest.mark.parametrize("replace", [False, True])
def test_who_has_left_as_asked_is_replaced_only_if_that_was_asked_for(replace: bool) -> None:
    slots = Slots(2)
    slots.follow({"a": 2, "b": 1})
    begin(slots)
    slots.left(next(one for one in slots._slots.values() if one.number == 0), replace)
    assert begin(slots, REST_SECONDS + 1) == ([(0, "a")] if replace else [])
    slots.ended(next(one for one in slots._slots.values() if one.number == 1), 9.0)
    assert begin(slots, 9.0) == [(1, "a")], "who dies is replaced, as before"


def test_a_worker_elsewhere_is_told_how_to_say_that_it_has_left(tmp_path: Path) -> None:
    """Else it would end with 0, as if the job were done."""
    secret = tmp_path / "secret"
    secret.write_text("of the job")
    here = {"BYTEPS_LIKE_SECRET_FILE": str(secret), leaving.WANTED: "1", "HOME": "/not/there"}
    assert json.loads(remote.told(here)) == {"BYTEPS_LIKE_SECRET": "of the job", leaving.WANTED: "1"}
