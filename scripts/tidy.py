"""`make tidy`: clang-tidy over the C++ core, several files of a folder at once, which share what they include.

What CMake would compile for the core is read from build/tidy/commands. A batch that has been looked at is not looked at
again before one of its files, a header or .clang-tidy has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ROOT / "build" / "tidy" / "commands"
STAMPS = ROOT / "build" / "tidy" / "stamps"
CHECKED = ("csrc", "server", "collectives", "compression")
INCLUDED = re.compile(r'^#include "(.+\.cc)"$', re.MULTILINE)


def files_of(unit: Path) -> list[Path]:
    """The sources that it is made of."""
    if unit.is_relative_to(COMMANDS):
        return [ROOT / name for name in INCLUDED.findall(unit.read_text())]
    return [unit]


def units() -> Iterator[tuple[Path, list[Path]]]:
    """What is compiled at once, and the sources in it."""
    entries = json.loads((COMMANDS / "compile_commands.json").read_text())
    for unit in dict.fromkeys(Path(entry["file"]) for entry in entries):
        files = files_of(unit)
        if files and files[0].is_relative_to(ROOT) and files[0].relative_to(ROOT).parts[0] in CHECKED:
            yield unit, files


def newest(files: list[Path]) -> float:
    """When the one was written that was written last."""
    return max(file.stat().st_mtime for file in files)


def look_at(tidy: str, unit: Path, stamp: Path) -> str:
    """What clang-tidy says; empty: nothing is wrong."""
    began = time.time()
    command = [tidy, "-p", str(COMMANDS), f"--config-file={ROOT / '.clang-tidy'}", "--quiet", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stdout + done.stderr
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    os.utime(stamp, (began, began))  # what is saved meanwhile is for the next time
    return ""


def main() -> None:
    """Exits with 1 if anything is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clang-tidy", default="clang-tidy")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    common = newest([ROOT / ".clang-tidy", *(path for top in CHECKED for path in (ROOT / top).rglob("*.h"))])
    due = []
    for unit, files in units():
        stamp = STAMPS / f"{files[0].relative_to(ROOT)}-{len(files)}"
        if not stamp.exists() or stamp.stat().st_mtime < max(common, newest(files)):
            due.append((options.clang_tidy, unit, stamp))
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [text for text in pool.map(lambda each: look_at(*each), due) if text]
    print(*found, sep="\n", end="")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
