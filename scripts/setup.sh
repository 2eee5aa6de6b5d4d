#!/usr/bin/env bash
# Sets a checkout up; `make` calls it. Does only what has changed since the last time, and is silent when nothing has:
#   1. Debian packages that are missing: installed as root, else named, and the script ends
#   2. a virtual environment in .venv with the exact versions of requirements-dev.lock
#   3. the native core, built in place
# Arguments: `test` for what the native tests need besides, `rdma` for the virtual machine of `make test-rdma`, `ci` for
# the compilers that only check and fuzz, `bench` for the rivals of the benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}

say() { printf '%s\n' "setup: $*" >&2; }

have() { command -v "$1" >/dev/null; }

have_admin() { PATH=$PATH:/usr/sbin:/sbin have "$1"; } # not on the path of every user

# The interpreter of .venv, or of the system for making it; empty if there is none of a version we support.
find_python() {
  local python
  for python in "$VENV/bin/python" python3.11 python3.12 python3.13 python3; do
    if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
}

# Debian's packages for a virtual environment and Python.h: those of the interpreter found, else the default ones.
missing_for_python() {
  local python=$1
  if [ -z "$python" ]; then
    have python3 || printf "%s\n" python3-venv python3-dev
    return
  fi
  "$python" - <<'PY'
import importlib.util, os, sys, sysconfig
version = "python{}.{}".format(*sys.version_info)
if importlib.util.find_spec("ensurepip") is None:
    print(version + "-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(version + "-dev")
PY
}

missing_packages() {
  have g++ || have clang++ || echo g++
  have make || echo make
  have git || echo git
  [ -e /usr/include/openssl/evp.h ] || echo libssl-dev
  [ -e /usr/include/zlib.h ] || echo zlib1g-dev
  case " $* " in *" test "*)
    [ -e /usr/include/doctest/doctest.h ] || echo doctest-dev
    [ "$(id -u)" -ne 0 ] || have ip || echo iproute2 # the lab's tests need root
    if [ "$(id -u)" -eq 0 ] && have apt-get; then # tests that need these are skipped without
      have etcd || echo etcd-server
      have etcdctl || echo etcd-client
    fi
    ;;
  esac
  case " $* " in *" rdma "*)
    have qemu-system-x86_64 || echo qemu-system-x86
    have busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1 || echo busybox-static
    have_admin modprobe || echo kmod
    have_admin rdma && have_admin tc || echo iproute2
    have cpio || echo cpio
    [ -e /etc/libibverbs.d/rxe.driver ] || echo ibverbs-providers
    compgen -G '/usr/lib/*/librdmacm.so.1' >/dev/null || echo librdmacm1
    ;;
  esac
  case " $* " in *" bench "*)
    have ib_write_bw || echo perftest
    have mpirun || printf "%s\n" openmpi-bin libopenmpi-dev
    [ "$(id -u)" -ne 0 ] || have ip || echo iproute2 # for the lab
    ;;
  esac
  case " $* " in *" ci "*)
    have aarch64-linux-gnu-g++ || [ "$(uname -m)" = aarch64 ] || echo g++-aarch64-linux-gnu
    if ! have clang++; then
      echo clang
    elif ! compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null; then
      echo "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
    fi
    ;;
  esac
}

install_debian_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@"; missing_for_python "$(find_python)")
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ] || ! have apt-get; then
    say "missing: ${missing[*]}"
    say "install that and run this again (Debian, Ubuntu: sudo apt-get install ${missing[*]})"
    exit 1
  fi
  say "installing the Debian packages ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

make_environment() {
  local stamp=$VENV/.installed python
  python=$(find_python)
  [ -n "$python" ] || { say "needs Python 3.11, 3.12 or 3.13, and found none: install one and run this again"; exit 1; }
  [ -x "$VENV/bin/python" ] || { say "making a virtual environment in $VENV"; "$python" -m venv "$VENV"; }
  cmp -s requirements-dev.lock "$stamp" && return
  say "installing the packages of requirements-dev.lock into $VENV (torch is large)"
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r requirements-dev.lock
  cp requirements-dev.lock "$stamp"
}

install_project() {
  local stamp=$VENV/.project
  cat pyproject.toml setup.py | cmp -s - "$stamp" && return
  say "building the native core (first time: a minute or two)"
  PATH="$PWD/$VENV/bin:$PATH" "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-build-isolation \
    --no-deps -e .
  cat pyproject.toml setup.py >"$stamp"
}

# Not in the lock, since it is of no use without an MPI.
install_rivals() {
  "$VENV/bin/python" -c 'import mpi4py' 2>/dev/null && return
  say "installing mpi4py into $VENV"
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check mpi4py==4.1.2
}

install_debian_packages "$@"
install_debian_packages "$@" # what clang's runtime and a new Python are called is known only now
make_environment
install_project
case " $* " in *" bench "*) install_rivals ;; esac
make --no-print-directory core PYTHON="$VENV/bin/python"
