"""Starts the ranks of a benchmark: by mpirun where MPI takes part, else as plain processes; on one host or in a lab.

mpirun reaches the hosts of a lab through an agent that enters their network namespace. All hosts would have the
machine's name, by which OpenMPI takes them for one: each gets a UTS namespace with a name of its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from byteps_like.bench.plan import MPI, BenchPlan
from byteps_like.bench.processes import wait_all
from byteps_like.launch.lab.hosts import INTERFACE, Lab

_MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
_AGENT = """#!/bin/sh
# Called by mpirun: an address of the lab, and a command with its arguments for the host of that address.
host=$1
shift
case $host in
{cases}
esac
export TMPDIR={folder}/$host
mkdir -p "$TMPDIR"
exec ip netns exec "$namespace" unshare --uts sh -c "hostname lab-$(echo "$host" | tr . -); $*"
"""


def why_no_mpi() -> str:
    """The reason why OpenMPI can't take part here, "" where it can."""
    if shutil.which("mpirun") is None:
        return "mpirun is not installed: run `scripts/setup.sh bench`"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: run `scripts/setup.sh bench`"
    return ""


def why_no_deepspeed(in_lab: bool) -> str:
    """The reason why DeepSpeed can't take part, "" where it can."""
    if in_lab:
        return "its all-reduce in shared memory works within one host"
    if importlib.util.find_spec("deepspeed") is None:
        return "it is not installed: run `DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed`"
    return ""


def run_ranks(plan: BenchPlan, lab: Lab | None, timeout: float) -> None:
    """Runs all ranks to their end. Raises SystemCallError if one fails, DeadlineError after `timeout` seconds."""
    command = [sys.executable, "-m", "byteps_like.bench.rank", str(plan.save())]
    if MPI in plan.contenders:
        starts = [(_mpirun(plan, lab) + command, _environment(plan))]
    else:
        starts = [
            (_placed(command, lab, rank, plan.ranks), {**_environment(plan), "BENCH_RANK": str(rank)})
            for rank in range(plan.ranks)
        ]
    processes = [subprocess.Popen(words, env=env, start_new_session=True) for words, env in starts]
    wait_all(processes, timeout)


def _environment(plan: BenchPlan) -> dict[str, str]:
    folders = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    # Short, because OpenMPI puts sockets there.
    settings = {f"OMPI_MCA_{name}": value for name, value in plan.mpi.items()}
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(filter(None, folders)), "TMPDIR": plan.folder,
            **(INTERFACE if plan.interface else {})}  # fmt: skip


def _placed(command: list[str], lab: Lab | None, rank: int, ranks: int) -> list[str]:
    return command if lab is None else lab.hosts[rank * len(lab.hosts) // ranks].command(command)


def _mpirun(plan: BenchPlan, lab: Lab | None) -> list[str]:
    passed = [word for name in ("PYTHONPATH", *(INTERFACE if lab else ())) for word in ("-x", name)]
    words = [*_MPIRUN, "-n", str(plan.ranks), *passed]
    if lab is None:
        return words
    agent = Path(plan.folder) / "agent"
    cases = "\n".join(f"  {host.address}) namespace={host.namespace} ;;" for host in lab.hosts)
    agent.write_text(_AGENT.format(cases=cases, folder=plan.folder))
    agent.chmod(0o755)
    slots = plan.ranks // len(lab.hosts)
    settings = {
        "plm": "rsh", "plm_rsh_agent": str(agent), "pml": "ob1", "btl": "tcp,self" if slots == 1 else "tcp,self,vader",
        "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0",
        "mpi_yield_when_idle": "1",  # the hosts share this machine's cores, which OpenMPI can't know
    }  # fmt: skip
    hosts = ",".join(f"{host.address}:{slots}" for host in lab.hosts)
    words += ["--host", hosts, *(word for name, value in settings.items() for word in ("--mca", name, value))]
    # Names without quotes in them, so that the shell in between has nothing to do.
    first = lab.hosts[0]
    return first.command(["unshare", "--uts", "sh", "-c", 'hostname lab-mpirun; exec "$@"', "sh", *words])
