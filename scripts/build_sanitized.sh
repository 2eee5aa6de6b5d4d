#!/usr/bin/env bash
# build_sanitized.sh thread|address TARGET...: builds targets in build/san-thread by the default compiler for the thread
# sanitizer, or in build/san-address-clang by clang for those for addresses and undefined behaviour. The latter takes
# half of g++'s time, and compiles the core once for the native tests and the fuzzers, which need clang.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=$1
shift

case $sanitizer in
thread)
  folder=build/san-thread
  options=(-DBYTEPS_LIKE_SANITIZE=thread)
  ;;
address)
  folder=build/san-address-clang
  clang=$(command -v clang++ || command -v clang++-14) || { echo "no clang++: run bash scripts/setup.sh ci" >&2; exit 1; }
  options=(-DBYTEPS_LIKE_SANITIZE=address,undefined -DBYTEPS_LIKE_FUZZ=ON -DCMAKE_CXX_COMPILER="$clang")
  ;;
*)
  echo "build_sanitized.sh thread|address TARGET..., not $sanitizer" >&2
  exit 2
  ;;
esac

mkdir -p build
cmake -S . -B "$folder" -G Ninja -DBYTEPS_LIKE_TESTS=ON -DBYTEPS_LIKE_PYTHON=OFF "${options[@]}" >"$folder.log"
cmake --build "$folder" --target "$@" -j "${JOBS:-2}"
