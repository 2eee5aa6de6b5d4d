"""The tests of tests/gpu/test_codec_kernels.py on a device that the host plays: that they pass where kernels are right.

All sizes and numbers are tests/native's; here what a device will be asked goes through the binding once a codec.
"""

import pytest

from byteps_like import _core
from byteps_like.cuda import sources
from byteps_like.cuda.recipes import Workbench
from tests.fakes.software_driver import DRIVER, needs_software_driver
from tests.scenarios.devices.kernels import KINDS, SPECS, same_mean, same_payload

pytestmark = needs_software_driver


@pytest.fixture(scope="module")
def device():
    gpu = _core.Gpu(0, str(DRIVER))
    module = gpu.load(str(DRIVER))
    names = [name for source in sources.sources() for name in source.kernels]
    return Workbench(gpu, {name: module.function(name) for name in names})


@pytest.mark.parametrize("spec", SPECS)
def test_payloads(device, spec):
    for number, kind in enumerate(KINDS):
        same_payload(device, spec, (1, 257)[number % 2], kind)


@pytest.mark.parametrize("spec", SPECS)
def test_means(device, spec):
    same_mean(device, spec, 257, "denormal")
