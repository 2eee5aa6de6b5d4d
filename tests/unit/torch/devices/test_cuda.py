"""Kernels' sources and what CuPy is asked to make of them, without a device; what is said where it can't be done."""

import contextlib
import ctypes
import dataclasses
import importlib.util
import sys
import types
from pathlib import Path

import pytest

from byteps_like.cuda import compiler, device, kernels, sources
from byteps_like.cuda.device import DeviceInfo, connections
from byteps_like.errors import DeviceError, InvalidArgumentError
from byteps_like.launch.hosts import cuda as host_cuda
from byteps_like.launch.hosts.host import Grade

ROOT = Path(__file__).resolve().parents[4]
H100 = DeviceInfo(0, "H100", (9, 0), 132, 80 << 30)


class FakeNvrtc:
    """cupy.cuda.nvrtc, which keeps what it is asked for."""

    NVRTCError = RuntimeError

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.refuses = False

    def getVersion(self):
        return (13, 0)

    def getSupportedArchs(self):
        return (75, 80, 90)

    def createProgram(self, text, name, headers, names):
        assert "#include" not in text and (headers, names) == ((), ())
        return name

    def compileProgram(self, program, options):
        self.asked.append((program, options))
        if self.refuses:
            raise RuntimeError("NVRTC_ERROR_COMPILATION (6)")

    def getCUBIN(self, program):
        return b"cubin of " + program.encode()

    def getPTX(self, program):
        return b"ptx of " + program.encode()

    def getProgramLog(self, program):
        return "line 7: no such thing"

    def destroyProgram(self, program):
        pass


class FakeModule:
    """cupy.cuda.Module; a kernel's address is made of its name."""

    def load(self, image):
        if image.startswith(b"ptx of "):
            raise RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")

    def get_function(self, name):
        return types.SimpleNamespace(ptr=hash(name))


class FakeDevice(contextlib.nullcontext):
    compute_capability = "90"


@pytest.fixture
def nvrtc(monkeypatch, tmp_path):
    fake, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    fake.cuda, cuda.nvrtc, cuda.Module, cuda.Device = cuda, FakeNvrtc(), FakeModule, FakeDevice
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "why_not", lambda: "")
    monkeypatch.setattr(kernels, "_loaded", {})
    return cuda.nvrtc


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


def test_kernels_are_compiled_once_for_all_processes_with_these_options_alone(nvrtc, monkeypatch):
    first = kernels.handles(0, ["casts"])
    assert first["casts_encode_bf16"] == hash("casts_encode_bf16")
    assert not [name for name in first if not name.startswith("casts_")]
    assert kernels.handles(1, ["casts"]) == first
    monkeypatch.setattr(kernels, "_loaded", {})  # the next process
    assert kernels.handles(0, ["casts"]) == first
    # The last of them counts: nothing that flushes denormals or contracts sums may come behind.
    assert nvrtc.asked == [("casts.cu", (*sources.OPTIONS, "-arch=sm_90"))]
    assert {"--fmad=false", "--ftz=false"} <= set(sources.OPTIONS)
    assert set(kernels.handles(0)) == {name for source in sources.sources() for name in source.kernels}


def test_images_depend_on_text_and_architecture_and_half_of_one_is_never_seen(nvrtc, tmp_path, caplog):
    source = sources.sources()[0]
    assert compiler.image(source, 80) == f"cubin of {source.name}.cu".encode()
    assert compiler.image(source, 121) == f"ptx of {source.name}.cu".encode()
    compiler.image(dataclasses.replace(source, text=source.text + "//"), 80)
    assert [options[-1] for _, options in nvrtc.asked] == ["-arch=sm_80", "-arch=compute_90", "-arch=sm_80"]
    assert len(compiler.cached()) == len(list((tmp_path / "cache").iterdir())) == 3
    with pytest.raises(DeviceError, match="not for 70"):
        compiler.image(source, 70)


def test_what_the_compiler_says_is_told_and_no_cache_does_no_harm(nvrtc, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert compiler.image(sources.sources()[0], 90)
    assert "can't be written" in caplog.text
    nvrtc.refuses = True
    with pytest.raises(DeviceError, match=r"blocksparse\.cu for sm_90: NVRTC_ERROR_COMPILATION.*\nline 7"):
        compiler.image(sources.sources()[0], 90)


def test_what_the_driver_refuses_to_load_is_told(nvrtc, monkeypatch):
    monkeypatch.setattr(FakeDevice, "compute_capability", "121")
    with pytest.raises(DeviceError, match=r"casts\.cu can't be loaded: CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        kernels.handles(0, ["casts"])


def test_a_cupy_that_is_newer_than_the_driver_is_told(nvrtc, monkeypatch):
    def refused(self):
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(FakeDevice, "__enter__", refused)
    with pytest.raises(DeviceError, match=r"casts\.cu can't be loaded: cudaErrorInsufficientDriver.*cuda12"):
        kernels.handles(0, ["casts"])


def test_a_source_that_is_not_there_is_named(nvrtc):
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


def test_an_old_gpu_beside_another_keeps_nobody_from_using_that(monkeypatch):
    old = dataclasses.replace(H100, index=1, name="P100", capability=(6, 0))
    monkeypatch.setattr(device.Driver, "__init__", lambda self: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    for found, words in (([H100, old], ""), ([old], "P100 is older than compute capability 7.5")):
        monkeypatch.setattr(device.Driver, "devices", lambda self, found=found: found)
        device.why_not.cache_clear()
        assert device.why_not() == words
    device.why_not.cache_clear()


def test_doctor_says_what_devices_are_and_what_kernels_lack(monkeypatch):
    assert host_cuda.told(H100) == "H100 (sm_90, 80 GiB)"
    monkeypatch.setattr(host_cuda, "why_not", lambda: "CuPy is missing: pip install it")
    kernel_row = host_cuda.kernels()
    assert (kernel_row.state, kernel_row.fix) == (Grade.WARN, "pip install it")


def test_doctor_says_what_torch_and_the_driver_lack(monkeypatch):
    monkeypatch.setattr(
        "byteps_like.torch.device.devices.why_not", lambda: "torch is built without CUDA: install another"
    )
    row = host_cuda.torch_on_gpus()
    assert (row.state, row.value, row.fix) == (Grade.WARN, "torch is built without CUDA", "install another")
    monkeypatch.setattr("byteps_like.torch.device.devices.why_not", lambda: "")
    assert host_cuda.torch_on_gpus().state is Grade.OK

    def no_driver():
        raise DeviceError("no libcuda.so.1")

    fine, old = (lambda why=why: types.SimpleNamespace(why_no_waits=why) for why in ("", "too old"))
    assert host_cuda.waits(fine, wanted=True).value == "wait for gradients, hosts don't"
    assert host_cuda.waits(old, wanted=True).value.endswith("too old")
    assert host_cuda.waits(old, wanted=False).value.startswith("hosts wait for gradients")
    assert "no libcuda.so.1" in host_cuda.waits(no_driver, wanted=False).value


def test_doctor_says_what_to_do_about_too_few_queues():
    few = types.SimpleNamespace(why_no_waits="CUDA_DEVICE_MAX_CONNECTIONS=1 ...; unset it")
    row = host_cuda.waits(lambda: few, wanted=True)
    assert (row.state, row.value) == (Grade.WARN, "hosts wait in their place: CUDA_DEVICE_MAX_CONNECTIONS=1 ...")
    assert row.fix == "unset it"


@pytest.mark.parametrize(("text", "queues"), [(None, 8), ("1", 1), ("32", 32), ("0", 8), ("-1", 8), ("many", 8)])
def test_queues_of_the_hardware(text, queues):
    environment = {} if text is None else {"CUDA_DEVICE_MAX_CONNECTIONS": text}
    assert connections(environment) == queues
    assert connections({**environment, "CUDA_LAUNCH_BLOCKING": "0"}) == queues
    assert connections({**environment, "CUDA_LAUNCH_BLOCKING": "1"}) == 0


def test_a_proof_in_which_tests_were_skipped_is_none(tmp_path):
    spec = importlib.util.spec_from_file_location("test_gpu_script", ROOT / "scripts" / "test_gpu.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    cases = '<testcase name="a"/><testcase name="b"><skipped/></testcase><testcase name="c"><error/></testcase>'
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    ended, bad = script.counts(tmp_path / "report.xml")
    assert ended == {"passed": 1, "failed": 1, "skipped": 1}
    assert bad == ["skipped: None::b", "failed: None::c"]
