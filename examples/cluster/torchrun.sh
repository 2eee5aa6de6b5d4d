#!/usr/bin/env bash
# Trains under torchrun, with nothing else to start: rank 0 runs the scheduler and the servers inside its own process,
# the others find them through torchrun's store.
#
# On one host:
#   ./torchrun.sh train.py --epochs 10
# On several, the same line on each:
#   NODES=2 HEAD=node1:29400 ./torchrun.sh train.py --epochs 10
#
# The job's secret then lies in torchrun's store, which asks nobody who he is: it is as private as the port of the
# store. On a network you don't trust start the scheduler yourself and set BYTEPS_LIKE_SECRET_FILE and
# BYTEPS_LIKE_SCHEDULER=host:port, which make torchrun's workers join that one.
set -euo pipefail

export BYTEPS_LIKE_NUM_SERVERS=${BYTEPS_LIKE_NUM_SERVERS:-1} # all on rank 0's host

if [ "${NODES:-1}" -eq 1 ]; then
    exec torchrun --standalone --nproc-per-node="${PER_NODE:-2}" "$@"
fi
exec torchrun --nnodes="$NODES" --nproc-per-node="${PER_NODE:-2}" \
    --rdzv-backend=c10d --rdzv-endpoint="${HEAD:?HEAD=host:port is not set}" --rdzv-id="${JOB:-byteps-like}" "$@"
