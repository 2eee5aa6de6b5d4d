"""`byteps-like config`: the settings that a process started here would have, and the source of each value."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Annotated, Any

import typer

from byteps_like.config import Config, environment_names
from byteps_like.config_environment import read_environment

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: BYTEPS_LIKE_SHARDS=2 byteps-like config --changed")
def config(
    changed: Annotated[bool, typer.Option("--changed", help="Show only settings that the environment sets.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also show the meaning of each setting.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Prints the effective configuration and the source of each value.

    Exits with code 2 if the environment contains an unknown name or an invalid value. Never prints the secret.
    """
    rows = [row for row in effective(dict(os.environ)) if not changed or row["from"] != "default"]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows, explain=explain)


def effective(environ: dict[str, str]) -> list[dict[str, Any]]:
    """One row per setting: name, value, from (a variable's name, or "default"), variable, meaning."""
    settings = [item for item in fields(Config) if not item.metadata.get("internal")]
    names = tuple(item.name for item in settings)
    values = Config.from_env(environ)
    sources = read_environment(environ, names)
    return [
        {
            "name": item.name,
            "value": getattr(values, item.name) if item.repr else "***" if getattr(values, item.name) else "",
            "from": sources[item.name][0] if item.name in sources else "default",
            "variable": environment_names(item.name)[0],
            "meaning": item.metadata["doc"],
        }
        for item in settings
    ]


def _print(rows: list[dict[str, Any]], *, explain: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "from", "meaning")[: 4 if explain else 3]:
        table.add_column(heading, overflow="fold")
    for row in rows:
        style = "" if row["from"] == "default" else "green"
        value = Text(str(row["value"]) or "(empty)", style)
        cells = [Text(row["name"]), value, Text(row["from"], style or "dim"), Text(row["meaning"], "dim")]
        table.add_row(*cells[: 4 if explain else 3])
    Console().print(table)
