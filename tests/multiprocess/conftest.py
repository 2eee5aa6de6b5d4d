"""What the tests of all rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.multiprocess.warm_python import WarmPython


@pytest.fixture(scope="session")
def warm_python() -> Iterator[list[str]]:
    """The command to put in the place of `sys.executable` for a script that imports torch."""
    server = WarmPython()
    yield server.command
    server.close()
