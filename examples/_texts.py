"""Lines of Python's own standard library, as words by number: text that is on every machine."""

from __future__ import annotations

import pathlib
import re
import sysconfig
import zlib
from typing import NamedTuple

import numpy as np


class Line(NamedTuple):
    """A line of a program, and which of two packages it is from."""

    words: np.ndarray
    """Numbers of its words, each once, ascending: int64."""
    label: int
    """0 or 1."""


def lines(packages: tuple[str, str], words: int, least: int = 4) -> list[Line]:
    """All lines with `least` words and more of two packages, shuffled; equal ones once. Words are numbered from 0 to
    `words` - 1 by their checksums, so that no rank needs a dictionary."""
    home = pathlib.Path(sysconfig.get_path("stdlib"))
    found = {}
    for label, package in enumerate(packages):
        for path in sorted((home / package).rglob("*.py")):
            for text in path.read_text(encoding="utf-8", errors="ignore").splitlines():
                numbers = {zlib.crc32(word.encode()) % words for word in re.findall(r"\w+", text)}
                if len(numbers) >= least:
                    found[tuple(sorted(numbers))] = label
    order = np.random.default_rng(0).permutation(len(found))
    every = list(found.items())
    return [Line(np.array(every[at][0]), every[at][1]) for at in order]
