#!/usr/bin/env bash
# Trains on a Slurm cluster: one scheduler, a server on every node, one worker per task.
#   sbatch slurm.sh train.py --epochs 10
#SBATCH --job-name=byteps-like
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
set -euo pipefail

# The secret goes by a file that only you may read, in a directory all nodes see; never on a command line.
umask 077
shared=${BYTEPS_LIKE_SHARED_DIR:-$HOME/.byteps-like}
mkdir -p "$shared"
export BYTEPS_LIKE_SECRET_FILE=$shared/secret-$SLURM_JOB_ID
python -c 'import secrets; print(secrets.token_hex(32))' > "$BYTEPS_LIKE_SECRET_FILE"
trap 'rm -f "$BYTEPS_LIKE_SECRET_FILE"' EXIT

# Two jobs may share a node: each takes a port of its own. A clash is refused, not mixed up: the job's name differs.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
export BYTEPS_LIKE_JOB=slurm-$SLURM_JOB_ID
export BYTEPS_LIKE_SCHEDULER=$head:$port
export BYTEPS_LIKE_NUM_SERVERS=$SLURM_NNODES
export BYTEPS_LIKE_WORLD_SIZE=$SLURM_NTASKS
export BYTEPS_LIKE_LOCAL_SIZE=$((SLURM_NTASKS / SLURM_NNODES))

# --overlap: scheduler and servers share their nodes' cores with the workers.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" --cpus-per-task=1 \
    byteps-like scheduler --port "$port" &
srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=2 \
    byteps-like server &

# Slurm knows each task's rank. The exit code of this step is the job's; what runs in the background ends with it.
srun --kill-on-bad-exit=1 bash -c '
    export BYTEPS_LIKE_RANK=$SLURM_PROCID BYTEPS_LIKE_LOCAL_RANK=$SLURM_LOCALID
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}
    exec python "$@"' worker "$@"
