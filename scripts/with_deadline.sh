#!/usr/bin/env bash
# with_deadline.sh SECONDS COMMAND...: runs a command that must have ended after so many seconds. One that has not is
# ended, after the stacks of all its threads have been shown (by gdb, where it is installed).
set -u
seconds=$1
shift
"$@" &
pid=$!
trap 'kill "$pid" 2>/dev/null' INT TERM

ends_within() { timeout "$1" tail --pid="$pid" -s 0.1 -f /dev/null; }

if ! ends_within "$seconds"; then
  echo "== not ended after $seconds s: $* ==" >&2
  command -v gdb >/dev/null && gdb -q -batch -p "$pid" -ex 'thread apply all backtrace' >&2 2>/dev/null
  kill -ABRT "$pid" # the native tests say by it which of them it was
  ends_within 10 || kill -KILL "$pid"
fi
wait "$pid"
