"""`byteps-like version`."""

from __future__ import annotations

import typer

from byteps_like import __version__

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Prints the version."""
    print(__version__)
