"""`byteps-like doctor`: checks the capabilities of this host and suggests fixes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from byteps_like.launch.hosts import cuda, encryption, gpus, host, network, rdma
from byteps_like.launch.hosts.host import Finding, Grade

app = typer.Typer(add_completion=False)
_STYLES = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}


@app.command(
    epilog="Exits with code 1 if a check reports [bold]fail[/bold]. Example: byteps-like doctor --json | jq '.[].fix'"
)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure memory, loopback TCP and encryption (5 s).")
    ] = False,
) -> None:
    """Checks the capabilities of this host and suggests fixes."""
    sources: list[Callable[[], Finding | Iterable[Finding]]] = [
        *host.ROWS,
        *cuda.ROWS,
        *gpus.ROWS,
        *network.ROWS,
        *rdma.ROWS,
        *encryption.ROWS,
    ]
    if measure:
        from byteps_like.launch.hosts import rates

        sources += [*rates.ROWS, *encryption.MEASURED]
    rows = collect(sources)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print(rows)
    if any(row.state is Grade.FAIL for row in rows):
        raise typer.Exit(1)


def collect(sources: Iterable[Callable[[], Finding | Iterable[Finding]]]) -> list[Finding]:
    """All rows; a check that itself fails becomes a row that says so."""
    rows: list[Finding] = []
    for source in sources:
        try:
            found = source()
            rows += [found] if isinstance(found, Finding) else found
        except (OSError, ValueError, KeyError, AttributeError) as error:
            name = getattr(source, "__name__", "check")
            rows.append(Finding(name, Grade.WARN, f"the check failed: {error!r}", "see /proc and /sys"))
    return rows


def _print(rows: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(Text(row.state, _STYLES[row.state]), Text(row.name, "bold"), Text(row.value, overflow="fold"))
        if row.fix:
            table.add_row("", "", Text(f"→ {row.fix}", "yellow", overflow="fold"))
    console = Console()
    console.print(table)
    counts = {state: sum(row.state is state for row in rows) for state in Grade}
    console.print(f"\n{counts[Grade.OK]} ok, {counts[Grade.WARN]} warnings, {counts[Grade.FAIL]} failures")
