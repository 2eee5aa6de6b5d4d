#!/usr/bin/env bash
# The native tests under the thread sanitizer, and under those for addresses and undefined behaviour. The second build
# runs beside the first tests, which wait for one another more than they compute.
set -euo pipefail
cd "$(dirname "$0")/.."
# Many bytes and nothing new: the thread sanitizer makes it ten times as slow. What has no threads of its own is not
# built for it at all (CMakeLists.txt). Two tests race on purpose: for the software GPU to notice it, and as a rank that
# changes what others read. Two look at what the process maps, or start threads in a forked child, as the sanitizer can't.
not_for_threads='host: a large tensor*,gpu driver: the software GPU notices*,host: a rank that changes its post*'
not_for_threads+=',regions: memory that nobody owns any more*,host: under a limit of file sizes*'

bash scripts/build_sanitized.sh thread native_tests
bash scripts/with_deadline.sh 1500 build/san-thread/native_tests -tce="$not_for_threads" >build/san-thread.log 2>&1 &
threads=$!
trap 'kill $threads 2>/dev/null || true' EXIT
bash scripts/build_sanitized.sh address native_tests
echo "== native tests, address and undefined-behaviour sanitizers =="
bash scripts/with_deadline.sh 1500 build/san-address-clang/native_tests
status=0
wait $threads || status=$?
trap - EXIT
echo "== native tests, thread sanitizer =="
cat build/san-thread.log
exit $status
