"""Operations that another thread begins."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest
import torch

from byteps_like.errors import DeadlineError, PeerLostError
from byteps_like.torch.gradients import relay
from byteps_like.torch.gradients.relay import Promised, Relay
from tests.fakes.held_worker import DEADLINE, HeldHandle, HeldWorker
from tests.fakes.thread_world import run_world
from tests.scenarios.crossing.low_rank import WEIGHTS, odd


def held() -> HeldHandle:
    return HeldHandle("x", range(1), 0, HeldWorker(64))


def test_it_is_over_when_what_was_promised_has_begun_and_landed():
    promised, handle = Promised(), held()
    assert not promised.done()
    promised.keep(handle)
    assert not promised.done()
    handle.land()
    assert promised.done()
    promised.wait()


def test_it_fails_with_what_was_promised():
    promised, handle = Promised(), held()
    promised.keep(handle)
    handle.land(PeerLostError("gone"))
    with pytest.raises(PeerLostError, match="gone"):
        promised.wait()


def test_it_fails_if_what_was_promised_never_begins():
    promised = Promised()
    promised.fail(PeerLostError("gone"))
    promised.fail(PeerLostError("later"))
    assert promised.done()
    with pytest.raises(PeerLostError, match="gone"):
        promised.wait()


def test_what_has_begun_is_not_failed_by_what_comes_after_it():
    promised, handle = Promised(), held()
    promised.keep(handle)
    promised.fail(PeerLostError("gone"))
    handle.land()
    promised.wait()


def test_waiting_for_a_beginning_has_a_deadline():
    with pytest.raises(DeadlineError, match="timed out"):
        Promised().wait(0.001)


def test_who_gives_it_up_needs_no_beginning():
    promised = Promised()
    promised.give_up(PeerLostError("gone"))
    with pytest.raises(PeerLostError, match="gone"):
        promised.wait()


def test_calls_are_made_in_turn_on_one_thread_that_ends_with_the_relay():
    relay, made, over = Relay(), [], threading.Event()
    for number in range(5):
        relay.put(lambda number=number: made.append((number, threading.current_thread())))
    relay.put(over.set)
    assert over.wait(DEADLINE)
    numbers, threads = zip(*made, strict=True)
    assert numbers == tuple(range(5)) and len(set(threads)) == 1 and threads[0] is not threading.current_thread()
    del relay
    gc.collect()
    threads[0].join(DEADLINE)
    assert not threads[0].is_alive()


def test_a_relay_that_is_dropped_makes_the_calls_that_it_was_given():
    relay, first, last = Relay(), threading.Event(), threading.Event()
    relay.put(lambda: first.wait(DEADLINE) and None)
    relay.put(last.set)
    del relay
    gc.collect()
    first.set()
    assert last.wait(DEADLINE)


@pytest.mark.parametrize("options", [{"compression": WEIGHTS}, {"shard": "optimizer"}], ids=["powersgd", "shards"])
def test_an_optimizer_that_gets_no_thread_is_not_made(options, monkeypatch):
    """Rather than a step that is sent in part."""

    def body(bps, rank, size):
        model = odd()

        def make():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return bps.DistributedOptimizer(
                optimizer, model.named_parameters(), cross_barrier=True, model=model, **options
            )

        with monkeypatch.context() as patch:
            patch.setattr(relay, "threading", SimpleNamespace(Thread=refuse, Lock=threading.Lock))
            with pytest.raises(RuntimeError, match="can't start new thread"):
                make()
        make().close()

    def refuse(**_):
        raise RuntimeError("can't start new thread")

    run_world(1, body)
