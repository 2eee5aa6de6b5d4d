"""`byteps-like bench`: compares collectives with other libraries and with hardware limits."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Benchmarks collectives.")

_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str) -> int:
    """Bytes of "8", "64k", "256M". Raises BadParameter for anything else."""
    digits, unit = text.rstrip("kKmMgGbB"), text.lstrip("0123456789").lower().removesuffix("b")
    if not digits.isdigit() or unit not in _SCALE:
        raise typer.BadParameter(f"{text!r} is not a size; write it as 8, 64k or 256M")
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
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Number of ranks; with --lab they are spread over its hosts.")
    ] = 2,
    compare: Annotated[
        str, typer.Option(help="Libraries to compare with: any of gloo, mpi, deepspeed, or none.")
    ] = "gloo,mpi,deepspeed",
    api: Annotated[
        str,
        typer.Option(help="Our interfaces: native, c10d, native,c10d, or none to measure the other libraries only."),
    ] = "native",
    least: Annotated[str, typer.Option("--min", help="Smallest size in bytes: 8, 64k, 256M.")] = "8",
    most: Annotated[str, typer.Option("--max", help="Largest size in bytes.")] = "256M",
    factor: Annotated[int, typer.Option("--factor", help="Factor between successive sizes.")] = 8,
    place: Annotated[str, typer.Option(help="in (in place), out (separate source and target) or both.")] = "both",
    memory: Annotated[
        str, typer.Option(help="Memory of our tensors: shared (empty_shared), private or both.")
    ] = "both",
    lab: Annotated[
        str, typer.Option(help="Measure in a lab of this many hosts and link rate, such as 4x1gbit; needs root.")
    ] = "",
    bind: Annotated[
        bool | None,
        typer.Option(help="Pin each rank, with all its threads, to a core; default: if there are enough cores."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Approximate seconds per case.")] = 0.5,
    json: Annotated[
        Path | None, typer.Option(help="Output file of JSON lines; default: out/collectives.jsonl.")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for one PNG per operation; default: none.")] = None,
) -> None:
    """Times collectives of byteps_like and of other libraries, and the limit of the path, interleaved in one run.

    Checks every result.
    """
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
