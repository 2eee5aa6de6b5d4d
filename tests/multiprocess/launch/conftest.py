from __future__ import annotations

import pytest
from launcher import Launcher


@pytest.fixture
def launcher(tmp_path):
    (tmp_path / "tmp").mkdir()
    started = Launcher(tmp_path / "tmp")
    yield started
    started.close()
