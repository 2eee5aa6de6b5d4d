"""SIGTERM while `bps.elastic.run` trains: whose handler it finds."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator

import pytest

from byteps_like.torch.elastic.termination import leaves_when_terminated


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """As processes begin: commands that other tests of this one have run may have set a handler."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.processes
def test_a_forked_child_ends_as_it_would_without() -> None:
    """It has nothing to leave, and must not ask for its parent to. It mostly is still being forked when the signal
    reaches it."""
    with leaves_when_terminated():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(10)
    assert child.exitcode == -signal.SIGTERM
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_handler_of_the_script_stays() -> None:
    def own(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, own)
    with leaves_when_terminated():
        assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGTERM) is own


def test_one_that_is_set_meanwhile_stays() -> None:
    def own(*_: object) -> None: ...

    with leaves_when_terminated():
        signal.signal(signal.SIGTERM, own)
    assert signal.getsignal(signal.SIGTERM) is own


def test_the_default_is_back_afterwards() -> None:
    with leaves_when_terminated():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
