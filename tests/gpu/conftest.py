"""Tests that need a GPU; skipped, with the reason, where there is none. `make test-gpu` runs them and tells on what."""

from __future__ import annotations

import os

import pytest

from byteps_like.torch.device import devices


@pytest.fixture
def stream_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams wait for the network in place of hosts, which copy nothing that isn't page-locked meanwhile."""
    monkeypatch.setenv("BYTEPS_LIKE_STREAM_WAITS", "1")
    monkeypatch.setattr(devices, "_known", {})  # those that there are have asked


# Ranks are threads of one process here, each with streams of its own and an engine's beside them: in CUDA's 8 queues
# one that waits for a peer would hold up that peer's copies (decision 0035). Read when the driver is first asked.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = devices.why_not()
    tried = "test_processes.py" if os.environ.get("GPU_TESTS_ON") == "cpu" else None
    for item in items:
        if why and "tests/gpu/" in item.path.as_posix() and item.path.name != tried:
            item.add_marker(pytest.mark.skip(reason=why))
