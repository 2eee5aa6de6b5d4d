# The native tests that need RDMA, run in the machine of scripts/rdma_vm.sh: tests.sh NATIVE_TESTS [OPTIONS OF DOCTEST...]
set -euo pipefail
tests=$1
shift
active=$(rdma link | grep -c ACTIVE)
[ "$active" -eq 4 ] || { echo "tests.sh: 4 RDMA devices expected, $active are active" >&2; exit 1; }
# With this the suites that run every transport leave out all but RDMA, which the host has not.
export BYTEPS_LIKE_TEST_TRANSPORT=rdma
exec "$tests" -nc -tc='*rdma*,transport:*,link:*,chaos:*,handshake:*' "$@"
