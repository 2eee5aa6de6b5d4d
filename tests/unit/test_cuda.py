"""Kernels' sources and what CuPy is asked to make of them, without a device; what is said where it can't be done."""

import contextlib
import ctypes
import sys
import types
import typing

import pytest

from byteps_like.cuda import device, kernels, sources
from byteps_like.cuda.device import DeviceInfo
from byteps_like.errors import InvalidArgumentError
from byteps_like.launch import host_cuda
from byteps_like.launch.host import State

H100 = DeviceInfo(0, "H100", (9, 0), 132, 80 << 30)


class FakeModule:
    """cupy.RawModule; a kernel's address is made of its name."""

    made: typing.ClassVar[list["FakeModule"]] = []

    def __init__(self, code, options, backend):
        self.code, self.options, self.backend = code, options, backend
        FakeModule.made.append(self)

    def get_function(self, name):
        return types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=hash(name)))


@pytest.fixture
def cupy(monkeypatch):
    fake = types.ModuleType("cupy")
    fake.cuda = types.SimpleNamespace(Device=lambda index: contextlib.nullcontext(index))
    fake.RawModule = FakeModule
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(kernels, "why_not", lambda: "")
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(FakeModule, "made", [])
    return fake


def test_sources_are_whole_and_their_kernels_named_after_them():
    found = {source.name: source for source in sources.sources()}
    assert {"casts", "fixed", "onebit", "feedback", "peers"} <= set(found)
    for source in found.values():
        assert "#include" not in source.text and "#pragma once" not in source.text
        assert source.text.count("DEVICE u32 RandomWord(") == 1, source.name
        assert source.kernels, source.name
        assert all(name.startswith(source.name + "_") for name in source.kernels)
    names = [name for source in found.values() for name in source.kernels]
    assert len(names) == len(set(names))


def test_kernels_are_compiled_once_a_device_without_contraction(cupy):
    first = kernels.handles(0, ["casts"])
    assert first["casts_encode_bf16"] == hash("casts_encode_bf16")
    assert not [name for name in first if not name.startswith("casts_")]
    assert kernels.handles(0, ["casts"]) == first
    (module,) = FakeModule.made
    assert (module.backend, "--fmad=false" in module.options) == ("nvrtc", True)
    kernels.handles(1, ["casts"])
    assert len(FakeModule.made) == 2
    assert set(kernels.handles(0)) == {name for source in sources.sources() for name in source.kernels}


def test_a_source_that_is_not_there_is_named(cupy):
    with pytest.raises(InvalidArgumentError, match=r"there is no nothing\.cu"):
        kernels.handles(0, ["nothing"])


def test_where_no_gpu_can_be_used_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(device.Driver, "__init__", lambda self: ctypes.CDLL("libno-such-driver.so"))
    device.why_not.cache_clear()
    try:
        with pytest.raises(InvalidArgumentError, match=r"no CUDA driver: libno-such-driver\.so"):
            kernels.handles(0)
    finally:
        device.why_not.cache_clear()


def test_doctor_says_what_devices_are_and_what_kernels_lack(monkeypatch):
    assert host_cuda.told(H100) == "H100 (sm_90, 80 GiB)"
    monkeypatch.setattr(host_cuda, "why_not", lambda: "CuPy is missing: pip install it")
    kernel_row = host_cuda.kernels()
    assert (kernel_row.state, kernel_row.fix) == (State.WARN, "pip install it")
