"""`byteps-like bench`: collectives against their rivals and limits."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measures collectives.")

_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str) -> int:
    """Bytes of "8", "64k", "256M". Raises BadParameter for anything else."""
    digits, unit = text.rstrip("kKmMgGbB"), text.lstrip("0123456789").lower().removesuffix("b")
    if not digits.isdigit() or unit not in _SCALE:
        raise typer.BadParameter(f"{text!r} is no size: write it as 8, 64k or 256M")
    return int(digits) * _SCALE[unit]


@app.command(
    epilog="[bold]Examples[/bold]  byteps-like bench all_reduce -n 4 --api native,c10d --max 64M  ·  "
    "byteps-like bench all_to_all -n 4 --lab 4x1gbit --compare gloo --plots out"
)
def bench(
    operations: Annotated[
        list[str] | None,
        typer.Argument(
            help="Any of all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send_recv, barrier;"
            " default: all."
        ),
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Number of ranks; in a lab spread over its hosts.")] = 2,
    compare: Annotated[str, typer.Option(help="Rivals: gloo, mpi, both with a comma, or none.")] = "gloo,mpi",
    api: Annotated[
        str, typer.Option(help="Our doors: native, c10d or both with a comma; none for the rivals alone.")
    ] = "native",
    least: Annotated[str, typer.Option("--min", help="Bytes of the smallest call: 8, 64k, 256M.")] = "8",
    most: Annotated[str, typer.Option("--max", help="Bytes of the largest call.")] = "256M",
    factor: Annotated[int, typer.Option("--factor", help="By which the sizes grow.")] = 8,
    place: Annotated[str, typer.Option(help="in: source and target are the same; out; or both.")] = "both",
    memory: Annotated[str, typer.Option(help="Of our tensors: shared (empty_shared), private or both.")] = "both",
    lab: Annotated[str, typer.Option(help="Hosts and their links, as 4x1gbit (root).")] = "",
    bind: Annotated[
        bool | None, typer.Option(help="A core for each rank, all its threads there; default: if there are enough.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure one case.")] = 0.5,
    json: Annotated[Path | None, typer.Option(help="File for JSON lines; default out/collectives.jsonl.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for a PNG per operation; default: none.")] = None,
) -> None:
    """Times collectives by us, by rivals and at the path's limit, in turn in one run, and checks every result."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the ranks, their files and the lab end with this
    from byteps_like.bench.collectives import Options, run
    from byteps_like.bench.plan import OPERATIONS
    from byteps_like.bench.report import OUT

    options = Options(
        operations=operations or OPERATIONS, ranks=ranks, least=parse_bytes(least), most=parse_bytes(most),
        factor=factor, places=[value for name, value in (("in", True), ("out", False)) if place in (name, "both")],
        memory=["shared", "private"] if memory == "both" else [memory], doors=_listed(api), rivals=_listed(compare),
        lab=lab, bind=bind, seconds=seconds, json=json or OUT / "collectives.jsonl", plots=plots,
    )  # fmt: skip
    run(options)


def _listed(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")
