"""How processes of a c10d world end that do so in the middle of something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_rank_may_end_while_others_call_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.scenarios.c10d.ending_job", str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], cwd=ROOT, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    texts = [process.communicate(timeout=60)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [3, 0], "\n".join(texts)
