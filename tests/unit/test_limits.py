"""Members raise their limit of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from byteps_like.config import Config
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.limits import raise_open_files

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, 5000)))
{start}
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 5000),) * 2, resource.getrlimit(resource.RLIMIT_NOFILE)
assert raise_open_files() == min(hard, 5000)
"""
SCHEDULER = """
server = SchedulerServer(Config.from_env({}, secret="s" * 32))
server.start()
server.stop()
"""
WORKER = """
from byteps_like.collectives.communicator import Communicator
Communicator(Config.from_env({}), "job", b"s" * 32).close()
"""


@pytest.mark.parametrize("start", [SCHEDULER, WORKER], ids=["scheduler", "worker"])
@pytest.mark.processes
def test_a_member_raises_its_limit_of_open_files_to_the_hard_one(start: str) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT.replace("{start}", start)], check=True, timeout=60)
