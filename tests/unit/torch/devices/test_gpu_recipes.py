"""What codecs launch on a device, and how it is handed to the driver: without one."""

import struct

import pytest

from byteps_like import _core
from byteps_like.cuda import recipes, sources
from byteps_like.errors import CorruptError, InvalidArgumentError

HANDLES = {
    name: number
    for number, name in enumerate((name for source in sources.sources() for name in source.kernels), start=1000)
}
SPECS = {"bf16": "bf16", "fixed": "fixed:bits=32,block=10000", "onebit": "onebit:block=64"}


def test_a_cast_is_one_launch_with_its_arguments():
    codec = _core.GpuCodec("bf16", 3, HANDLES)
    (launch,) = codec.encode(_core.GpuRound(4096, 5000, (1, 2, 0)), 8192)
    assert launch == (
        "launch",
        HANDLES["casts_encode_bf16"],
        (3, 256, 0),
        [struct.pack("<Q", 4096), struct.pack("<I", 5000), struct.pack("<Q", 8192)],
    )
    assert not codec.varies
    with pytest.raises(CorruptError, match="wrong length"):
        codec.decode(_core.GpuRound(4096, 5000, (1, 2, 0)), 8192, 9999, 1)


def test_large_blocks_of_fixed_begin_with_zeros():
    codec = _core.GpuCodec(SPECS["fixed"], 3, HANDLES)
    assert codec.workspace(25_000) == 3 * 4
    kinds = codec.prepare(_core.GpuRound(4096, 25_000, (1, 2, 0), workspace=512), 8192)
    assert kinds[0] == ("fill", 512, 0, 12)
    assert [kind[1] for kind in kinds[1:]] == [HANDLES["fixed_greatest"], HANDLES["fixed_exponents"]]


def test_every_codec_s_source_is_there_and_gives_all_that_it_launches():
    names = {source.name: source.kernels for source in sources.sources()}
    for name in _core.gpu_codec_names():
        assert _core.gpu_source(name) in names
    for name, spec in SPECS.items():
        _core.GpuCodec(spec, 3, {kernel: 1 for kernel in names[_core.gpu_source(name)]})
    assert _core.gpu_source("natural") == ""
    with pytest.raises(InvalidArgumentError, match="does not run on GPUs"):
        _core.GpuCodec("natural:seed=0", 3, HANDLES)


class FakeGpu:
    """_core.Gpu, which keeps its calls."""

    def __init__(self) -> None:
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


def test_launches_reach_the_device_in_order():
    gpu = FakeGpu()
    recipes.run(gpu, 77, [("fill", 512, 0, 12), ("copy", 1024, 512, 8), ("launch", 5, (3, 256, 100), [b"abcd"])])
    assert gpu.calls == [
        ("fill", 512, 0, 12, 77),
        ("copy", 1024, 512, 8, 77),
        ("launch", 5, 3, 256, 100, 77, [b"abcd"]),
    ]
