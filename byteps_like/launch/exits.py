"""How a command of this package ends in an error: in one line, and with an exit code that says whose error it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from byteps_like.errors import BytePSLikeError


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Within the block, this package's errors end the process with exit code 2, and the system's with 1."""
    try:
        yield
    except BytePSLikeError as error:
        print(f"byteps-like: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"byteps-like: {error}", file=sys.stderr)
        sys.exit(1)
