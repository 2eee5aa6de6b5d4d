"""Tests that need a GPU; skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest

from byteps_like.torch import devices


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = devices.why_not()
    for item in items:
        if why and "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=why))
