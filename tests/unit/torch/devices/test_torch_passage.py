"""Passages on a device whose program has a stream like any other: what waits for what, and what must not."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from byteps_like.torch.c10d.futures import Callbacks, CallFuture
from byteps_like.torch.c10d.work import Work
from byteps_like.torch.device import devices, inflight
from byteps_like.torch.device import staged_copy as passage
from byteps_like.torch.device.staged_copy import Stage
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.software_device import SoftwareDevice, SoftwareEvent

LIMIT = 5.0


class StreamedDevice(SoftwareDevice):
    """What the program queues is done when its turn comes. `opened`: of no stream with room for more until then."""

    def __init__(self):
        super().__init__()
        self.program, self.opened, self.asked = self.side(), None, threading.Event()

    def current(self):
        if self.opened is not None:
            self.asked.set()
            assert self.opened.wait(LIMIT), "the stream is full, and no gate was opened"
        return getattr(self._thread, "stream", None) or self.program

    def gate(self):
        return StreamGate(self)


class StreamGate:
    def __init__(self, device):
        self._device, self._event = device, SoftwareEvent()

    def block(self, stream):
        assert stream == self._device.program.handle
        self._device.program.after(self._event)
        return True

    def open(self):
        self._event.happen()
        if self._device.opened is not None:
            self._device.opened.set()


class Operation:
    """One that ends when it is told to."""

    def __init__(self):
        self._ended, self._callbacks = threading.Event(), []

    def done(self):
        return self._ended.is_set()

    def wait(self, timeout=None):
        assert self._ended.wait(timeout or LIMIT)

    def error(self):
        return None

    def on_done(self, callback):
        self._callbacks.append(callback) if not self.done() else callback()

    def end(self):
        self._ended.set()
        for callback in self._callbacks:
            callback()


@pytest.fixture
def device():
    one = StreamedDevice()
    with contextlib.closing(one):
        yield one


def received(device, stage, operation):
    """An operation that only writes to the device."""
    target = torch.zeros(2)
    launched = threading.Event()

    def launch():
        launched.set()
        return operation

    return stage.start([], [(target, device.empty(target).fill_(1.0))], launch), launched, target


def test_what_has_come_early_holds_up_nothing_that_the_program_waits_for(device):
    stage, late, early = Stage(device), Operation(), Operation()
    work, _, _ = received(device, stage, late)
    work.block()
    early.end()
    second, launched, target = received(device, stage, early)  # behind the wait for the first
    launched.wait(0.3)
    late.end()
    device.program.record().wait()
    second.wait()
    device.program.record().wait()
    assert target.tolist() == [1.0] * 2
    stage.close()


def test_gates_open_while_another_thread_waits_for_room_in_a_stream(device):
    """The driver blocks who queues behind a thousand launches that are behind a shut gate."""
    stage, operation = Stage(device), Operation()
    work, launched, _ = received(device, stage, operation)
    assert launched.wait(LIMIT)
    work.block()
    device.opened = threading.Event()
    started = []
    thread = threading.Thread(target=lambda: started.append(received(device, stage, Operation())), daemon=True)
    thread.start()
    assert device.asked.wait(LIMIT)
    operation.end()
    thread.join(LIMIT)
    assert started
    stage.close()


def test_callbacks_share_a_stream(device, monkeypatch):
    """torch has 32 of a priority, and gives them out in turn: one each would soon be those of copies too."""
    place, callbacks = torch.device("cuda", 0), Callbacks()
    monkeypatch.setitem(devices._known, place, device)
    future, streams = CallFuture(callbacks), []
    future._devices = (place,)
    future.set_result(None)
    for _ in range(5):
        future.add_done_callback(lambda _: streams.append(device.current().handle))
    callbacks.close()
    callbacks.join()
    assert len(streams) == 5 and len(set(streams)) == 1
    assert streams[0] != device.program.handle


def test_a_callback_or_an_event_that_fails_ends_no_thread(device):
    """Whose work others wait for."""

    class Failed:
        def wait(self):
            raise RuntimeError("an illegal memory access was encountered")

    def refuse():
        raise RuntimeError("told twice")

    stage, operation = Stage(device), Operation()
    work, launched, _ = received(device, stage, operation)
    assert launched.wait(LIMIT)
    work.on_done(refuse)
    operation.end()
    gates = [device.gate(), device.gate()]
    for gate, landed in zip(gates, (Failed(), None), strict=True):
        stage.open(gate, landed)
    for gate in gates:
        gate._event.wait()
    told = threading.Event()

    def launch():
        assert told.wait(LIMIT)
        raise RuntimeError("not launched")

    broken = stage.start([], [], launch)
    broken.on_done(refuse)
    told.set()
    after, _, target = received(device, stage, operation)
    after.wait(LIMIT)
    device.program.record().wait()
    assert target.tolist() == [1.0] * 2
    stage.close()


def test_what_is_parked_while_others_are_looked_at_is_kept():
    """Destructors park, and they run at any time: here within the look itself."""
    data, later = [object(), object()], Operation()

    class Asked(Operation):
        def done(self):
            if data:
                inflight.park([later], data.pop())
            return True

    before = len(inflight._parked)
    inflight.park([Asked()], None)
    assert not data and len(inflight._parked) == before + 2
    later.end()
    inflight.release()
    assert len(inflight._parked) == before


def test_who_leaves_the_job_keeps_nothing_that_is_over():
    operation = Operation()
    with runtime.bound(LocalWorker()):
        inflight.park([operation], "memory")
        assert any(parked.data == "memory" for parked in inflight._parked)
        operation.end()
    assert not any(parked.data == "memory" for parked in inflight._parked)


def test_the_end_waits_for_no_device_that_hangs(device, monkeypatch):
    monkeypatch.setattr(passage, "_LAST_SECONDS", 0.1)
    stage, device.opened = Stage(device), threading.Event()
    thread = threading.Thread(target=received, args=(device, stage, Operation()), daemon=True)
    thread.start()
    assert device.asked.wait(LIMIT)
    stage.close()
    assert thread.is_alive(), "it has waited for what hangs"
    device.opened.set()
    thread.join(LIMIT)


def test_a_result_that_torch_refuses_is_an_error_of_the_future(monkeypatch):
    """Such as a tensor on a device that the future is not for, or on any device what can't be pickled."""
    complete = CallFuture.set_result

    def refusing(self, result):
        if result == "refused":
            raise ValueError("the result contained tensors residing on device(s) cuda:1")
        complete(self, result)

    monkeypatch.setattr(CallFuture, "set_result", refusing)
    callbacks = Callbacks()
    future = CallFuture(callbacks)
    future.set_result(None)
    second = future.then(lambda _: "refused")
    callbacks.close()
    callbacks.join()
    assert second.done()
    with pytest.raises(ValueError, match="cuda:1"):
        second.wait()


def test_a_work_whose_result_torch_refuses_ends_its_future():
    class Refused(Work):
        def join(self):
            raise RuntimeError("an illegal memory access was encountered")

    operation, callbacks = Operation(), Callbacks()
    future = Refused(operation, [], [], callbacks).get_future()
    operation.end()
    assert future.done()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        future.wait()
    callbacks.close()
