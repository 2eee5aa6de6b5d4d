#!/usr/bin/env bash
# Builds the native core and runs the tests that need no torch with each supported Python that is installed.
# Arguments: the interpreters (default: python3.11 to python3.13, those of them that can be found).
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- $(compgen -c python3.1 | grep -xE 'python3\.1[123]' | sort -u)
needs='accelerate|build|clang|matplotlib|mypy|ruff|scikit|torch|types|grpc-stubs'
for python in "$@"; do
  version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))' 2>/dev/null) || continue
  place=$PWD/build/python-$version
  echo "== Python $version =="
  [ -x "$place/bin/python" ] || "$python" -m venv "$place"
  grep -vE "^($needs)" requirements-dev.lock >"$place/requirements.txt"
  "$place/bin/python" -m pip install -qq --disable-pip-version-check -r "$place/requirements.txt"
  make --no-print-directory core PYTHON="$place/bin/python"
  mapfile -t tests < <(git ls-files 'tests/unit/test_*.py' 'tests/property/test_*.py' 'tests/contract/test_*.py' \
    'tests/contract/filters/test_*.py' 'tests/package/test_*.py' tests/multiprocess/control/test_control.py | grep -v torch)
  PATH="$place/bin:$PATH" "$place/bin/python" -m pytest "${tests[@]}"
done
