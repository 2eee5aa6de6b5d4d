"""Words that run a module of this checkout as a process, whatever its working directory is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def module(name: str, *arguments: str) -> list[str]:
    """Runs `python -m name arguments`: on this machine, on a host of a lab, or by `byteps-like run`.

    The root is put into the path by the words themselves: whoever starts them may have another working directory, and
    chooses the environment.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return ["env", f"PYTHONPATH={path}", sys.executable, "-m", name, *arguments]


def again(*arguments: str) -> list[str]:
    """Runs this benchmark once more, with its own arguments and `arguments`: as the ranks of its job."""
    return module(sys.modules["__main__"].__spec__.name, *sys.argv[1:], *arguments)
