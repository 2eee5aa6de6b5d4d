"""What the software device promises to ranks that are threads of one process."""

from __future__ import annotations

import pytest
import torch

from tests.fakes.software_cuda import software_cuda
from tests.fakes.software_driver import needs_software_driver


@needs_software_driver
def test_ranks_find_all_operators_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that make the same one at once leave torch with the address of one that was freed."""
    made: list[str] = []

    class Noted(torch._ops.OpOverload):
        def __init__(self, packet, *args):
            made.append(str(packet))
            super().__init__(packet, *args)

    with software_cuda() as device, device.in_stream_order():
        monkeypatch.setattr(torch._ops, "OpOverload", Noted)
        torch.special.spherical_bessel_j0(torch.ones(1))  # which nothing else here uses
    assert "aten.special_spherical_bessel_j0" not in made
