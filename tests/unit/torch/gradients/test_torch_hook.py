"""The hook for torch's own DistributedDataParallel: on which threads it may be called, and who waits for it."""

from __future__ import annotations

import os
import threading

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.torch.ddp import comm_hook
from tests.fakes.thread_world import run_world


class Bucket:
    """What torch hands to a hook."""

    def __init__(self, gradient):
        self._gradient = gradient

    def index(self):
        return 0

    def buffer(self):
        return self._gradient


class Ended:
    """What is in flight no more, and raises `error`."""

    def __init__(self, error=None):
        self._error = error

    def wait(self, timeout=None):
        if self._error is not None:
            raise self._error


def completed(handle):
    future = torch.futures.Future()
    comm_hook._waiter.put(handle, future)
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    return ended


def test_a_thread_that_knows_no_runtime_may_call_it():
    """With a model on a device that is one of autograd's."""

    def body(bps, rank, size):
        state, found = bps.DDPHookState(), []

        def call():
            found.append(bps.ddp_hook(state, Bucket(torch.full((5,), rank + 1.0))).wait().tolist())

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(20)
        return found

    assert run_world(2, body) == [[[1.5] * 5]] * 2


def test_no_error_of_one_bucket_keeps_those_behind_it():
    for error in (RuntimeError("CUDA error: an illegal memory access"), bps.BytePSLikeError("lost")):
        first, second = completed(Ended(error)), completed(Ended())
        assert first.wait(10) and second.wait(10)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.processes
def test_a_forked_child_waits_by_a_thread_of_its_own():
    assert completed(Ended()).wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if completed(Ended()).wait(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
