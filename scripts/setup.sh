#!/usr/bin/env bash
# Everything `make demo`, `make test` and `make check` need: Debian packages (as root, where missing), a virtual
# environment with the pinned packages, the native core. Does only what has changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}

say() { printf '\033[1m%s\033[0m\n' "$*"; }

install_debian_packages() {
  local -A provides=([g++]=g++ [make]=make [git]=git [ip]=iproute2 [clang++]=clang)
  local missing=()
  for command in "${!provides[@]}"; do
    command -v "$command" >/dev/null || missing+=("${provides[$command]}")
  done
  [ -e /usr/include/openssl/evp.h ] || missing+=(libssl-dev)
  [ -e /usr/include/doctest/doctest.h ] || missing+=(doctest-dev)
  command -v clang++ >/dev/null && ! ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a \
    /usr/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a >/dev/null 2>&1 && missing+=("$(runtime_of_clang)")
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    say "Missing: ${missing[*]}. Install them and run this again (Debian, Ubuntu: sudo apt-get install ${missing[*]})."
    exit 1
  fi
  say "Installing ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
}

runtime_of_clang() {
  local major
  major=$(clang++ -dumpversion | cut -d. -f1)
  echo "libclang-rt-$major-dev"
}

find_python() {
  for python in python3.11 python3.12 python3.13 python3; do
    if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  say "No Python 3.11, 3.12 or 3.13 found: install one of them and run this again." >&2
  exit 1
}

install_python_packages() {
  local stamp=$VENV/.installed
  [ -x "$VENV/bin/python" ] || { say "Making $VENV"; "$(find_python)" -m venv "$VENV"; }
  if ! cmp -s requirements-dev.lock "$stamp"; then
    say "Installing the pinned packages into $VENV (torch is large)"
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r requirements-dev.lock
    cp requirements-dev.lock "$stamp"
  fi
}

install_project() {
  local stamp=$VENV/.project
  if ! cmp -s pyproject.toml "$stamp"; then
    say "Building the native core (first time: a minute or two)"
    PATH="$PWD/$VENV/bin:$PATH" "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-build-isolation \
      --no-deps -e .
    cp pyproject.toml "$stamp"
  fi
}

install_debian_packages
install_python_packages
install_project
make --no-print-directory core PYTHON="$VENV/bin/python"
