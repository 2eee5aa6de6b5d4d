"""`byteps-like lab`: emulates hosts on one machine, connected by rate-limited links."""

from __future__ import annotations

import signal
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from byteps_like.errors import BytePSLikeError
from byteps_like.launch.lab import hosts as labs

app = typer.Typer(
    no_args_is_help=True,
    help="Emulates a cluster in network namespaces of this machine, with rate-limited links. Needs root.",
)

_RUN_EPILOG = """
[bold]Example[/bold]  byteps-like lab run --hosts 4 --spare 2 --servers auto --rate 1gbit -- python train.py
"""

Hosts = Annotated[int, typer.Option("--hosts", min=1, help="Number of hosts.")]
Rate = Annotated[
    str, typer.Option("--rate", help="Rate of every link in each direction: 1gbit, 100mbit, or none for no limit.")
]


@app.command()
def up(hosts: Hosts = 4, rate: Rate = "1gbit") -> None:
    """Builds a lab and keeps it until Ctrl-C; prints how to run commands on its hosts."""
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _explained(console), labs.Lab(hosts, rate=split_rates(rate)) as lab:
        console.print(_table(lab))
        console.print(f"run a command on host 0:  ip netns exec {lab.hosts[0].namespace} ping {lab.hosts[-1].address}")
        console.print("Ctrl-C removes the lab.")
        signal.pause()


@app.command(no_args_is_help=True, epilog=_RUN_EPILOG)
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command that each worker runs.")],
    hosts: Hosts = 4,
    servers: Annotated[
        str,
        typer.Option(
            "--servers", "-s", help="Number of servers, each on a host of its own; auto: the most useful placement."
        ),
    ] = "1",
    spare: Annotated[
        int, typer.Option("--spare", min=0, help="With --servers auto: number of hosts without workers.")
    ] = 0,
    racks: Annotated[
        int,
        typer.Option(
            "--racks", min=0, help="Number of racks of the workers' hosts, each with an aggregator on one more host."
        ),
    ] = 0,
    per_host: Annotated[int, typer.Option("--workers-per-host", min=1, help="Number of workers per host.")] = 1,
    rate: Rate = "1gbit",
    timeout: Annotated[float | None, typer.Option(min=0.0, help="End the job after this many seconds.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Do not print the summary line.")] = False,
) -> None:
    """Runs a job like `byteps-like run`, but with workers and servers on separate emulated hosts."""
    from byteps_like.cli.run import parse_servers
    from byteps_like.launch.fleet import choose
    from byteps_like.launch.lab.job import racks_of_hosts, run_in_lab
    from byteps_like.launch.options import RunOptions

    count = parse_servers(servers)
    if count is not None and spare:
        raise typer.BadParameter("--spare is only valid with --servers auto", param_hint="--spare")
    if racks and count is None:
        raise typer.BadParameter("--racks is only valid with a number of --servers", param_hint="--racks")
    options = RunOptions(command, hosts * per_host, (count or 0) + racks, timeout=timeout, quiet=quiet)
    console = Console()
    with _explained(console), labs.Lab(hosts + racks + (count or spare), rate=split_rates(rate)) as lab:
        fleet = None
        if count is None:
            fleet = choose([host.shape.rate or 1 for host in lab.hosts], hosts, per_host)
            console.print(f"byteps-like: {fleet.why}")
        code = run_in_lab(lab, options, per_host, fleet, racks=racks_of_hosts(hosts, racks))
    raise typer.Exit(code)


@app.command()
def goodput(
    rate: Rate = "1gbit",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of the measurement in seconds.")] = 2.0,
) -> None:
    """Measures the TCP goodput between two hosts."""
    console = Console()
    with _explained(console), labs.Lab(2, rate=split_rates(rate)) as lab:
        console.print(f"{lab.goodput(seconds=seconds) / 1e6:.2f} MB/s of payload at {rate}")


@app.command()
def clean() -> None:
    """Removes labs whose owner ended without removing them."""
    removed = labs.sweep()
    Console().print(f"removed {len(removed)} labs" + "".join(f"\n  {name}" for name in removed))


def split_rates(text: str) -> str | list[str]:
    """One rate for all, or "1gbit,100mbit,…" with one per host."""
    return text.split(",") if "," in text else text


def _table(lab: labs.Lab) -> Table:
    table = Table("host", "address", "rate", "namespace")
    for host in lab.hosts:
        rate = f"{host.shape.rate / 1e6:g} Mb/s" if host.shape.rate else "unshaped"
        table.add_row(str(host.index), host.address, rate, host.namespace)
    return table


class _explained:
    """Turns the package's errors into one line and status 1, and Ctrl-C into a quiet end."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, BytePSLikeError):
            self._console.print(f"[red]{error}[/red]")
            raise typer.Exit(1)
        return isinstance(error, KeyboardInterrupt)
