"""What any place for records does, on a disk and in a real etcd: what is there after an end of any kind, who writes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps_like.control.records.opening import open_records
from byteps_like.control.records.records import Records
from byteps_like.errors import RefusedError
from tests.real_etcd import RealEtcd

CHANGES = st.dictionaries(st.sampled_from("abcd"), st.none() | st.binary(max_size=20), min_size=1)
Place = Callable[[], str]
"""Another one each time."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEtcd]:
    made = RealEtcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.kill()


@pytest.fixture(params=["folder", pytest.param("etcd", marks=pytest.mark.processes)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return lambda: str(tmp_path / uuid.uuid4().hex)
    etcd: RealEtcd = request.getfixturevalue("etcd")
    return lambda: f"etcd://{etcd.endpoint}/{uuid.uuid4().hex}"


def opened(state: str, *, wait: bool = False) -> Records:
    return open_records(state, "job", wait=wait)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits=st.lists(CHANGES, max_size=6))
def test_what_was_committed_is_there_in_the_next_term(place: Place, commits: list[dict[str, bytes | None]]) -> None:
    state = place()
    expected: dict[str, bytes] = {}
    terms = [0]
    for changes in commits:
        records = opened(state)
        terms.append(records.term)
        assert records.load() == expected
        records.check()
        records.commit(changes)
        expected = {name: content for name, content in (expected | changes).items() if content is not None}
        assert records.load() == expected
        records.close()
        records.close()
    assert terms == sorted(set(terms)), "each is greater than all before"


def test_a_commit_of_any_size_is_there_whole(place: Place) -> None:
    """Beyond what etcd takes in one request, in bytes and in operations."""
    state = place()
    many: dict[str, bytes | None] = {f"tensor/{number}": os.urandom(1000) for number in range(4000)}
    one: dict[str, bytes | None] = {"moves/0": os.urandom(3 << 20)}
    records = opened(state)
    for changes in (many, one, dict.fromkeys(list(many)[1:])):
        records.commit(changes)
    expected = {"tensor/0": many["tensor/0"], "moves/0": one["moves/0"]}
    assert records.load() == expected
    records.close()
    again = opened(state)
    assert again.load() == expected
    again.close()


@pytest.mark.processes
def test_a_killed_process_has_stored_what_it_committed_and_lets_go(place: Place) -> None:
    script = (
        "import os, sys; from byteps_like.control.records.opening import open_records;"
        "r = open_records(sys.argv[1], 'job'); r.load(); r.commit({'a': b'1'}); os.kill(os.getpid(), 9)"
    )
    state = place()
    assert subprocess.run([sys.executable, "-c", script, state], check=False).returncode == -9
    records = opened(state)  # an etcd's lease ends by itself
    assert records.load() == {"a": b"1"}
    records.close()


def test_one_at_a_time(place: Place) -> None:
    state = place()
    records = opened(state)
    with pytest.raises(RefusedError, match=r"another scheduler keeps its state (in|at) .* --standby"):
        opened(state)
    records.check()
    records.close()
    after = opened(state)
    assert after.term > records.term
    after.close()


def test_a_standby_waits_for_the_end_of_who_rules(place: Place) -> None:
    state = place()
    records = opened(state)
    found: list[Records] = []
    standby = threading.Thread(target=lambda: found.append(opened(state, wait=True)))
    standby.start()
    time.sleep(0.5)
    assert not found
    records.commit({"a": b"1"})
    records.close()
    standby.join(10)
    assert found[0].term > records.term
    assert found[0].load() == {"a": b"1"}
    found[0].close()


def test_jobs_of_one_etcd_have_records_of_their_own(etcd: RealEtcd) -> None:
    state = f"etcd://{etcd.endpoint}/{uuid.uuid4().hex}"
    several = [open_records(state, job) for job in ("a", "a/leader", "b")]
    for number, records in enumerate(several):
        records.commit({"x": str(number).encode()})
    assert [records.load() for records in several] == [{"x": b"0"}, {"x": b"1"}, {"x": b"2"}]
    for records in several:
        records.close()
