"""Where the software libcuda is, which stands for a device's driver: the build of the native tests makes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).resolve().parents[2] / "build" / f"cmake-{sys.implementation.cache_tag}" / "libsoftware_cuda.so"

needs_software_driver = pytest.mark.skipif(
    not DRIVER.exists(), reason="no software libcuda: `make test-native` builds it (target software_cuda)"
)
