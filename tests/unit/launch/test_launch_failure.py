"""Which of several failures is shown as the first."""

from types import SimpleNamespace

import pytest

from byteps_like.launch.child import ChildPart
from byteps_like.launch.ending import failure
from byteps_like.launch.lines import Tail

PEER_LOST = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    bps.push_pull(x)
byteps_like.errors.PeerLostError: worker 2 (host a, pid 7) died"""
BOOM = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss = model(x)
ValueError: boom"""
CHAINED = f"""{BOOM}

During handling of the above exception, another exception occurred:

{PEER_LOST}"""
WRAPPED = f"""{PEER_LOST}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    raise RuntimeError("training failed") from error
RuntimeError: training failed"""


def child(rank, status, stderr="", *, role="worker", wrote_at=1.0, ended_at=2.0, signalled=None, stdout=""):
    streams = {}
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        tail = Tail()
        for line in text.splitlines():
            tail.add(line.encode(), wrote_at)
        streams[name] = SimpleNamespace(tail=tail)
    process = SimpleNamespace(pid=100 + rank)
    part = ChildPart(role, rank)
    return SimpleNamespace(
        part=part, process=process, exit_status=status, ended_at=ended_at, signalled=signalled, **streams
    )


def first_of(*children):
    found = [judged for one in children if (judged := failure.judge(one)) is not None]
    return failure.root_cause(found)


def test_the_exception_is_shown_not_the_loss_it_caused_even_when_it_ended_later():
    first = first_of(
        child(0, 1, PEER_LOST, wrote_at=1.5, ended_at=1.6),
        child(1, 1, PEER_LOST, wrote_at=1.4, ended_at=1.5),
        child(2, 1, BOOM, wrote_at=1.7, ended_at=3.0),
    )
    assert first.part == "worker 2"
    assert first.cause == "ValueError: boom"


def test_the_chain_decides_by_its_first_exception():
    assert first_of(child(0, 1, CHAINED, wrote_at=2.0), child(1, 1, PEER_LOST)).part == "worker 0"
    assert first_of(child(0, 1, WRAPPED), child(1, -9, wrote_at=5.0, ended_at=5.0)).part == "worker 1"


def test_a_death_by_signal_is_a_cause_and_one_by_the_launcher_is_not():
    first = first_of(child(0, 1, PEER_LOST, ended_at=1.0), child(1, -11, ended_at=2.0), child(2, -15, signalled=15))
    assert (first.part, first.exit_code, first.how) == ("worker 1", 139, "killed by signal 11 (SIGSEGV)")
    assert first_of(child(2, -15, signalled=15), child(3, 3, signalled=15)) is None
    assert first_of(child(2, -11, signalled=15)).exit_code == 139


def test_one_that_raised_and_then_hung_until_the_launcher_ended_it_is_the_cause():
    first = first_of(child(0, 1, PEER_LOST), child(1, -15, BOOM, wrote_at=0.5, ended_at=9.0, signalled=15))
    assert (first.part, first.exit_code) == ("worker 1", 1)


def test_a_traceback_that_was_logged_long_before_the_end_is_not_the_cause():
    logged = BOOM + "\n" + "\n".join(f"step {n}" for n in range(60))
    judged = failure.judge(child(0, 3, logged, ended_at=4.0))
    assert judged.at == 4.0
    assert judged.excerpt[-1] == "step 59"


def test_mere_consequences_are_shown_in_their_order():
    assert first_of(child(0, 1, PEER_LOST, wrote_at=2.0), child(1, 1, PEER_LOST, wrote_at=1.0)).part == "worker 1"


def test_who_comes_when_the_job_has_ended_is_not_the_cause():
    late = BOOM.replace("ValueError: boom", "byteps_like.errors.RefusedError: job 'a' has ended; a worker (b) is late")
    refused = BOOM.replace("ValueError: boom", "byteps_like.errors.RefusedError: worker 1 is one too many")
    assert first_of(child(0, 1, late, wrote_at=1.0), child(1, 1, BOOM, wrote_at=2.0)).part == "worker 1"
    assert [failure.judge(child(0, 1, text)).came_too_late for text in (late, refused, BOOM)] == [True, False, False]
    assert not failure.judge(child(0, 1, refused)).consequence


def test_report_names_rank_code_and_traceback_and_what_came_after():
    failures = [failure.judge(child(2, 1, BOOM)), failure.judge(child(0, 1, PEER_LOST))]
    text = failure.report(failures[0], failures, colour=False)
    assert text.splitlines()[1] == "worker 2 failed first: exit code 1 (pid 102)"
    assert "  ValueError: boom" in text.splitlines()
    assert text.splitlines()[-1].startswith("after it: worker 0: exit code 1: byteps_like.errors.PeerLostError")


def test_the_cause_is_the_exception_whatever_was_written_after_it():
    noisy = failure.judge(child(0, 1, BOOM + "\nsome library: says goodbye\nsee https://example.org"))
    assert noisy.cause == "ValueError: boom"


def test_silence_is_said_to_be_silence_and_stdout_stands_in_for_stderr():
    assert "(it wrote nothing)" in failure.report(failure.judge(child(0, 5)), [], colour=False)
    assert failure.judge(child(0, 5, stdout="last words")).excerpt == ("last words",)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_exit_codes_are_a_shells(status, code):
    assert failure.exit_code_of(status) == code


def test_a_service_that_ends_because_the_job_failed_is_not_the_cause():
    noticed = child(0, 1, "E worker 1 died", role="scheduler", ended_at=1.0)
    assert first_of(noticed, child(1, 4, ended_at=2.0)).part == "worker 1"
    assert first_of(noticed, child(0, 1, PEER_LOST, wrote_at=2.0)).part == "scheduler"
    assert (
        first_of(child(0, 2, "cannot listen", role="server"), child(0, 1, PEER_LOST, wrote_at=0.5)).part == "server 0"
    )
