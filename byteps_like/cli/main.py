"""`byteps-like`: a table of commands, each in its own module that is imported when it is called.

A module has a typer app named `app`: one command, or several under one name. Nothing here imports torch or gRPC.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
import typer.core
import typer.main

from byteps_like.launch.exits import errors_in_one_line

COMMANDS = {
    "run": "byteps_like.cli.run",
    "scheduler": "byteps_like.cli.scheduler",
    "server": "byteps_like.cli.server",
    "worker": "byteps_like.cli.worker",
    "status": "byteps_like.cli.status",
    "doctor": "byteps_like.cli.doctor",
    "config": "byteps_like.cli.config",
    "schedule": "byteps_like.cli.schedule",
    "plan": "byteps_like.cli.plan",
    "tune": "byteps_like.cli.tune",
    "timeline": "byteps_like.cli.timeline",
    "lab": "byteps_like.cli.lab",
    "bench": "byteps_like.cli.bench",
    "chaos": "byteps_like.cli.chaos",
    "version": "byteps_like.cli.version",
}
"""Command -> module, in the order of the help page."""


class _LazyGroup(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        del ctx
        if name not in COMMANDS:
            self.commands = dict.fromkeys(COMMANDS, typer.main.get_command(app))  # the names for "did you mean"
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[name]).app)
        command.name = name
        return command


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.callback(
    epilog="Try [bold]byteps-like run -n 2 -s 1 -- python train.py[/bold], or [bold]byteps-like doctor[/bold]."
)
def _root() -> None:
    """Trains PyTorch models with summation servers or collectives: starts, monitors and diagnoses jobs."""


def main() -> None:
    """Runs the command line; errors are shown as one line."""
    with errors_in_one_line():
        app(prog_name="byteps-like")
