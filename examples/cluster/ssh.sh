#!/usr/bin/env bash
# Trains on hosts you can reach by ssh: the scheduler here, a server and a worker on every host of the list.
#   HOSTS="node1 node2 node3" ./ssh.sh /shared/train.py --epochs 10
# Needs the same Python environment on all hosts ($PYTHON) and ssh without passwords. `byteps-like doctor` on each
# host says whether it is fit.
set -euo pipefail

read -ra hosts <<< "${HOSTS:?HOSTS=\"node1 node2 ...\" is not set}"
python=${PYTHON:-python3}
address=${ADDRESS:-$(hostname -I | awk '{print $1}')} # of this host, as the others reach it
port=${PORT:-20077}
job=ssh-$$
remote_secret=/tmp/byteps-like-secret-$job

umask 077
secret=$(mktemp)
finish() {
    trap - EXIT
    for host in "${hosts[@]}"; do ssh "$host" "rm -f $remote_secret" || true; done
    rm -f "$secret"
    # What is still running ends with its connection: -tt gives it a terminal, whose loss is a SIGHUP.
    kill $(jobs -p) 2> /dev/null || true
}
trap finish EXIT

# The secret goes through standard input: an argument could be read by every user of the host.
"$python" -c 'import secrets; print(secrets.token_hex(32))' > "$secret"
for host in "${hosts[@]}"; do ssh "$host" "umask 077; cat > $remote_secret" < "$secret"; done

common="BYTEPS_LIKE_JOB=$job BYTEPS_LIKE_SCHEDULER=$address:$port BYTEPS_LIKE_SECRET_FILE=$remote_secret"
common+=" BYTEPS_LIKE_WORLD_SIZE=${#hosts[@]} BYTEPS_LIKE_NUM_SERVERS=${#hosts[@]}"

env BYTEPS_LIKE_JOB="$job" BYTEPS_LIKE_SECRET_FILE="$secret" BYTEPS_LIKE_WORLD_SIZE="${#hosts[@]}" \
    BYTEPS_LIKE_NUM_SERVERS="${#hosts[@]}" "$python" -m byteps_like scheduler --port "$port" &

workers=()
for rank in "${!hosts[@]}"; do
    ssh -tt "${hosts[$rank]}" "env $common $python -m byteps_like server" < /dev/null 2>&1 | sed "s/^/server $rank | /" &
    ssh -tt "${hosts[$rank]}" "env $common BYTEPS_LIKE_RANK=$rank $python $(printf '%q ' "$@")" < /dev/null 2>&1 |
        sed "s/^/worker $rank | /" &
    workers+=($!)
done

# With pipefail each of these is its worker's own exit code; the first that failed is ours.
code=0
for worker in "${workers[@]}"; do wait "$worker" || code=$((code ? code : $?)); done
exit "$code"
