"""check_symbols.py MODULE.so: fails if the native core needs a symbol that nobody defines.

An extension module can't be linked with -Wl,-z,defs, since the interpreter that loads it defines Python's symbols. So
the dynamic linker is asked after the build what it finds nowhere: else a missing function would be seen at import only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
_OF_PYTHON = re.compile(r"_?Py[A-Z_]")


def missing(module: str) -> list[str]:
    """Symbols that neither `module`, nor its libraries, nor Python define."""
    said = subprocess.run(["ldd", "-r", module], capture_output=True, text=True, check=False)
    found = _UNDEFINED.findall(said.stdout + said.stderr)
    return sorted({symbol for symbol in found if not _OF_PYTHON.match(symbol)})


def demangled(symbols: list[str]) -> list[str]:
    """As C++ has them, if there is a c++filt."""
    if shutil.which("c++filt") is None:
        return symbols
    return subprocess.run(["c++filt", *symbols], capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    """Says what is missing."""
    if shutil.which("ldd") is None:
        return 0
    symbols = missing(sys.argv[1])
    if symbols:
        print(f"{sys.argv[1]}: no source file defines {', '.join(demangled(symbols))}", file=sys.stderr)
    return 1 if symbols else 0


if __name__ == "__main__":
    sys.exit(main())
