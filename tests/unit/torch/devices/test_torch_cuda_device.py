"""What is asked of torch.cuda, of which there is none: on which device."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from byteps_like import cuda
from byteps_like.torch.device import cuda as cuda_device
from byteps_like.torch.device.cuda import CudaDevice

SECOND = torch.device("cuda", 1)


class FakeCuda:
    """torch.cuda: threads begin on device 0; `asked`: what asked for the current one, and which it was."""

    def __init__(self):
        self.now, self.asked = torch.device("cuda", 0), []

    @contextlib.contextmanager
    def device(self, wanted):
        before, self.now = self.now, wanted
        try:
            yield
        finally:
            self.now = before

    def ask(self, what, result=None):
        self.asked.append((what, self.now))
        return result

    def Event(self, blocking):
        return SimpleNamespace(
            record=lambda stream: None, query=lambda: self.ask("query", True), synchronize=lambda: self.ask("wait")
        )

    def current_stream(self, device):
        return SimpleNamespace(cuda_stream=0, device=device)

    def is_current_stream_capturing(self):
        return self.ask("capturing", False)


@pytest.fixture
def fake(monkeypatch):
    one = FakeCuda()
    monkeypatch.setattr(cuda_device, "_cuda", one)
    return one


def test_no_thread_uses_a_device_that_is_not_the_tensor_s(fake, monkeypatch):
    """CUDA's runtime makes a context, of hundreds of MB, on whichever is current."""
    monkeypatch.setattr(cuda, "handles", lambda number, sources: fake.ask("kernels", {}))
    device = CudaDevice(SECOND)
    event = device.current().record()
    assert event.done()
    event.wait()
    assert not device.capturing()
    device.kernels(["casts"])
    assert fake.asked == [(what, SECOND) for what in ("query", "wait", "capturing", "kernels")]


@pytest.mark.parametrize(("setting", "waits"), [("0", False), ("1", True)])
def test_streams_wait_where_the_setting_says_so_and_the_driver_can(monkeypatch, setting, waits):
    monkeypatch.setenv("BYTEPS_LIKE_STREAM_WAITS", setting)
    device = CudaDevice(SECOND)
    device._native = SimpleNamespace(waits_by_value=True, gate=lambda: "gate")
    assert device.streams_wait() is waits and device.gate() == ("gate" if waits else None)
    device._native = SimpleNamespace(waits_by_value=False)
    assert not device.streams_wait() and device.gate() is None


def test_a_job_with_the_setting_has_streams_wait(monkeypatch):
    monkeypatch.setattr(cuda_device, "_asked", False)
    device = CudaDevice(SECOND)
    device._native = SimpleNamespace(waits_by_value=True)
    assert not device.streams_wait()
    cuda_device.let_streams_wait()
    assert device.streams_wait()
