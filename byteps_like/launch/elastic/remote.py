"""A worker on another host: its environment comes by standard input, since arguments can be read by everybody there.

    python -m byteps_like.launch.elastic.remote COMMAND...

runs COMMAND with the variables that the first line holds, as JSON, and ends it when standard input ends: then the
launcher has, or the connection to it.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_GRACE_SECONDS = 5.0
_HANDED_DOWN = ("BYTEPS_", "_BYTEPS_LIKE_", "OMP_", "CUDA_", "COLUMNS", "PYTHONUNBUFFERED")


def is_here(host: str) -> bool:
    """Whether `host` names the one that this process runs on."""
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())


def start_command(template: str, host: str, command: Sequence[str]) -> list[str]:
    """What starts `command` on `host`, in the working directory of this process and by the same Python, by a template
    such as "ssh {host} {command}"."""
    there = shlex.join([sys.executable, "-m", __name__, *command])
    inner = f"cd {shlex.quote(str(Path.cwd()))} && {there}"
    words = shlex.split(template)
    return [inner if word == "{command}" else word.replace("{host}", host) for word in words]


def told(environment: Mapping[str, str]) -> bytes:
    """What such a process reads first: the variables that make it a worker of the job, and the secret itself."""
    variables = {name: value for name, value in environment.items() if name.startswith(_HANDED_DOWN)}
    secret = Path(variables.pop("BYTEPS_LIKE_SECRET_FILE")).read_text().strip()
    return json.dumps({**variables, "BYTEPS_LIKE_SECRET": secret}).encode() + b"\n"


def main(command: Sequence[str]) -> int:
    """Runs `command` until it ends, or this process is told to; its exit code."""
    variables = json.loads(_first_line())
    child = subprocess.Popen(command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    ended = os.pidfd_open(child.pid)
    while ended not in (ready := select.select([ended, 0], [], [])[0]):
        if 0 in ready and not os.read(0, 4096):
            _end(child)
            break
    status = child.wait()
    return status if status >= 0 else 128 - status


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 1)):
            sys.exit("byteps-like: no environment came by standard input")
        line += more
    return line


def _end(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
