"""Runs examples one after the other as one worker of a job, so that torch is imported once for all of them.

byteps-like run -n 2 -- python examples_driver.py "gpt.py --steps 3" "ddp_style.py"
"""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import sklearn.datasets

import byteps_like.torch as bps

assert sklearn.datasets
"""Imported before the first example: who comes a second after the others have left finds that the job has ended."""
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def main(commands: list[str]) -> None:
    sys.path.insert(0, str(EXAMPLES))
    for command in commands:
        script, *arguments = shlex.split(command)
        print(f"== {script}", flush=True)
        sys.argv = [script, *arguments]
        try:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        except SystemExit as end:  # --help
            assert not end.code, f"{command} ended with {end.code}"
        bps.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
