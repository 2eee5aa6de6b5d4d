"""Where operations of single tensors meet: what follows when ranks disagree, and who waits for what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from byteps_like.errors import BytePSLikeError, MismatchError, PeerLostError
from byteps_like.torch.job.naming import LANES, Among, Call, Claim, NameTable
from byteps_like.worker.api import LEFT, OUT_OF_STEP
from byteps_like.worker.local import CompletedHandle

DEADLINE = 10.0
WORLD = Among()


def _begin(names: NameTable, name: str | None, among: Among = WORLD) -> Claim:
    return names.claim(among, Call("push_pull", name, "sum of float32[4]"), lambda _: None)


def _made(names: NameTable, name: str | None) -> Claim:
    """Begun, and over."""
    claim = _begin(names, name)
    names.begun(claim, CompletedHandle())
    names.release(claim)
    return claim


def _failed(names: NameTable, claim: Claim) -> None:
    names.begun(claim, CompletedHandle())
    names.release(claim, MismatchError("differs"))


def test_who_has_begun_one_passes_the_others_over():
    one, other = NameTable(), NameTable()
    named, unnamed = _begin(one, "x"), _begin(other, None)
    for names, claim in ((one, named), (other, unnamed)):
        names.fail([named.place, unnamed.place], MismatchError("differ"))
        _failed(names, claim)
    for name in ("x", None):
        assert _made(one, name).name == _made(other, name).name


def test_who_has_begun_none_raises_at_the_first_and_passes_the_others_over():
    names, other = NameTable(), NameTable()
    places = [_begin(other, "x").place, _begin(other, None).place]
    names.fail(places, MismatchError("differ"))
    with pytest.raises(MismatchError, match="differ"):
        _begin(names, None)
    assert _made(names, "x").use == 1
    assert _made(names, None).place == ("unnamed#1", 0)


def test_numbers_that_are_passed_over_count_in_their_lanes():
    names = NameTable()
    for _ in range(LANES - 1):
        _made(names, None)
    named = _begin(names, "x")
    names.fail([named.place, (f"unnamed#{LANES - 1}", 0)], MismatchError("differ"))
    assert _made(names, None).place == ("unnamed#0", 1)
    for _ in range(LANES - 2):
        _made(names, None)
    assert _made(names, None).place == (f"unnamed#{LANES - 1}", 1)


def test_process_sets_have_places_of_their_own():
    names = NameTable()
    claim = _begin(names, "x", Among("set3.", (0, 2)))
    assert claim.meeting().ranks == (0, 2)
    assert claim.what == "'x' of process set 3"
    assert names.have_begun([claim.place, ("x", 0)]) == (True, False)


@contextmanager
def _waiting_thread(names: NameTable, claim: Claim) -> Iterator[None]:
    """Another thread waits for `claim` within the block."""
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with names.waits(claim):
            inside.set()
            leave.wait(DEADLINE)

    thread = threading.Thread(target=wait)
    thread.start()
    assert inside.wait(DEADLINE)
    try:
        yield
    finally:
        leave.set()
        thread.join(DEADLINE)


def test_what_blocks_is_what_all_threads_wait_for():
    names = NameTable()
    first, second = _begin(names, "x"), _begin(names, "y")
    assert names.blocking(0.0) == []
    with names.waits(first):
        assert names.blocking(0.0) == [first]
        assert names.blocking(60.0) == []
        with _waiting_thread(names, second):
            assert names.blocking(0.0) == [first, second]
        assert names.blocking(0.0) == [first], "of a thread that has ended nothing comes"


def test_nothing_blocks_while_the_thread_that_made_the_table_is_elsewhere():
    names = NameTable()
    with _waiting_thread(names, _begin(names, "x")):
        assert names.blocking(0.0) == []


def test_what_has_failed_does_not_block():
    names = NameTable()
    claim = _begin(names, "x")
    with names.waits(claim):
        names.fail([claim.place], MismatchError("differs"))
        assert names.blocking(0.0) == []


@pytest.mark.parametrize(
    "error",
    [MismatchError(f"rank 1: {OUT_OF_STEP}: ..."), PeerLostError(f"rank 0: rank 2 (10.0.0.3, pid 7) {LEFT}")],
    ids=["given up by another", "another has left"],
)
def test_who_hears_it_from_another_rank_first_goes_on_when_it_knows_what_to_pass_over(error: BytePSLikeError):
    names = NameTable()
    claim = _begin(names, None)
    heard = threading.Event()

    def hear() -> None:
        names.hear(claim, error)
        heard.set()

    thread = threading.Thread(target=hear)
    thread.start()
    assert not heard.wait(0.2)
    names.fail([("x", 0), claim.place], MismatchError("differ"))
    assert heard.wait(DEADLINE)
    thread.join(DEADLINE)
    assert _made(names, "x").use == 1
    names.hear(claim, MismatchError("shapes differ"))  # at once


def test_a_failure_that_is_told_before_a_rank_begins_anew_is_not_lost():
    """The others know already that all have joined, have gone on, and disagree."""
    ahead, behind = NameTable(), NameTable()
    for names in (ahead, behind):
        names.release(_begin(names, "x"))
    ahead.begin_anew()
    first = _begin(ahead, "x")
    behind.fail([first.place], MismatchError("the ranks disagree"))
    behind.begin_anew()
    with pytest.raises(MismatchError, match="disagree"):
        _begin(behind, "x")
    assert _begin(behind, "x").place == (first.point, first.use + 1)
