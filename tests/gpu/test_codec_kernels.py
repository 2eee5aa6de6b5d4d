"""Kernels on a device: the bytes of the CPU's codecs. test_gpu_kernels.py: the same, played by the host."""

import pytest

from byteps_like import _core, cuda
from byteps_like.cuda.recipes import Workbench
from tests.scenarios.devices.kernels import KINDS, SPECS, same_mean, same_payload


@pytest.fixture(scope="module")
def device():
    if why := cuda.why_not():
        pytest.skip(why)
    return Workbench(_core.Gpu(0), cuda.handles(0))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("numel", [1, 257, 40_000, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_device_has_the_bits_of_the_cpu(device, spec, numel, kind):
    same_payload(device, spec, numel, kind)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("numel", [1, 257, 40_000, 1 << 20])
def test_what_is_decoded_is_the_cpu_s_too(device, spec, numel):
    same_mean(device, spec, numel, "denormal")
