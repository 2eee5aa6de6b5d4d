"""The `python` that has torch imported is like another to who starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.warm_python import WarmPython

SECONDS = 60.0


def run(command: list[str], *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A script's output and exit status."""
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, **options
    )  # type: ignore[call-overload,no-any-return]


SHOWN = """
import os, sys
before = "torch" in sys.modules
import __main__
print(sys.argv, __name__, __main__.__dict__ is globals(), os.getcwd(), os.environ["OWN"], "HOME" in os.environ)
print(before, sys.stdin.read(), file=sys.stderr)
"""


@pytest.mark.parametrize("form", ["file", "module", "text"])
def test_arguments_folder_environment_and_streams_are_the_command_s(
    warm_python: list[str], tmp_path: Path, form: str
) -> None:
    script = tmp_path / "shown.py"
    script.write_text(SHOWN)
    begin = {"file": [str(script)], "module": ["-m", "shown"], "text": ["-c", SHOWN]}[form]
    answers = [
        run(command, *begin, "one", "-2", cwd=tmp_path, env={"OWN": "is set"}, input="given")
        for command in (warm_python, [sys.executable])
    ]
    for warm, fresh in [(answers[0].stdout, answers[1].stdout), (answers[0].stderr, answers[1].stderr)]:
        assert warm.replace("True given", "False given") == fresh
    assert answers[0].stderr == "True given\n"


@pytest.mark.parametrize(
    "script",
    [
        "pass",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('said at the end')",
        "import os; os._exit(7)",
        "raise KeyError(5)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 15)",
        "import atexit; atexit.register(print, 'last'); print('first', end=' ')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "import __main__, pickle\nclass Own: pass\nprint(type(pickle.loads(pickle.dumps(Own()))) is Own)",
    ],
)
def test_it_ends_as_another_would(warm_python: list[str], script: str) -> None:
    warm, fresh = (run(command, "-c", script) for command in (warm_python, [sys.executable]))
    assert (warm.returncode, warm.stdout) == (fresh.returncode, fresh.stdout)
    assert warm.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def start(command: list[str], script: str) -> subprocess.Popen[str]:
    """A script, once it has said something."""
    process = subprocess.Popen([*command, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# The signal may come while the first line is flushed, and a buffer can't be written to within that.
HANDLES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"told\\n"), sys.exit(5)))
print("ready", flush=True)
time.sleep(600)
"""


def test_signals_are_passed_on(warm_python: list[str]) -> None:
    process = start(warm_python, HANDLES)
    process.terminate()
    assert (*process.communicate(timeout=SECONDS), process.returncode) == ("told\n", "", 5)


WAITS = "import time; print('ready', flush=True); time.sleep(600)"


def ended(process: subprocess.Popen[str]) -> str:
    """What it has said when nobody has its streams any more."""
    return process.communicate(timeout=SECONDS)[1]


def test_a_command_that_is_killed_takes_the_script_with_it(warm_python: list[str]) -> None:
    process = start(warm_python, WAITS)
    process.kill()
    ended(process)
    assert process.returncode == -signal.SIGKILL


def test_who_runs_when_the_server_dies_says_so() -> None:
    server = WarmPython()
    try:
        process = start(server.command, WAITS)
        server.process.kill()
        assert "has died while it ran ['-c', " in ended(process)
        assert process.returncode == 1
        late = run(server.command, "-c", "pass")
        assert late.returncode == 1 and "can't be reached: " in late.stderr
    finally:
        server.close()
