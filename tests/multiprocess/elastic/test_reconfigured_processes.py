"""Real processes of a group that is made anew when one of them dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_killed_process_is_left_out_and_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.scenarios.c10d.reconfiguring_job", str(tmp_path / "store")]
    processes = [
        subprocess.Popen([*command, str(number)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for number in range(4)
    ]
    texts = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL, 0, 0], "\n".join(texts)
    assert all("on after" in texts[number] for number in (0, 2)), texts
