"""`byteps-like plan codecs`: predicts for which tensor sizes and networks compression pays."""

from __future__ import annotations

import json as jsons
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from byteps_like.compression.decision import Decision, Path, SendingCost

SIZES = tuple(1 << power for power in range(16, 27, 2))  # bytes of fp32
DEFAULT = "int8,thc4,onebit"
_LEAST_WIDTH = 110
_RATES = tuple(0.05 * 1.25**step for step in range(45))  # Gb/s, to 1000
EXAMPLES = (
    "[bold]Examples[/bold]  byteps-like plan codecs --workers 8 --servers 8 --gbps 10  ·  "
    "byteps-like plan codecs --gbps 1 --codecs thc4,topk,fp8"
)


def codecs(
    workers: Annotated[
        int, typer.Option("--workers", "-n", min=1, help="Number of workers, each on a host of its own.")
    ] = 4,
    servers: Annotated[
        int, typer.Option("--servers", "-s", min=1, help="Number of servers, each on a host of its own.")
    ] = 4,
    gbps: Annotated[float, typer.Option(min=0.001, help="Rate of each network card per direction, in Gb/s.")] = 10.0,
    latency_us: Annotated[float, typer.Option(min=0.0, help="One-way latency in microseconds.")] = 100.0,
    names: Annotated[str, typer.Option("--codecs", help="Comma-separated codecs, as for compression=.")] = DEFAULT,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Measures codecs on one core of this machine and predicts the fastest way to send tensors.

    For each tensor size: raw, as bf16 or encoded, and in how many pieces. For each codec: the network rate up to which
    it is faster than bf16.
    """
    from byteps_like.compression.decision import Path, decide
    from byteps_like.planner.cluster import GOODPUT

    path = Path(workers, servers, gbps * GOODPUT, latency_us * 1e-6)
    with Console(stderr=True, quiet=json).status("measuring"):
        ways = _ways([name for name in names.split(",") if name], workers)
    decisions = [decide(nbytes // 4, ways, path) for nbytes in SIZES]
    limits = _limits(ways, path)
    if json:
        rows = [
            {"bytes": 4 * one.numel, "best": one.name, "pieces": one.pieces, "seconds": dict(one.seconds)}
            for one in decisions
        ]
        print(jsons.dumps({"rows": rows, "pays_below_gbps": limits}, indent=1))
    else:
        width = Console().width
        Console(width=max(width, _LEAST_WIDTH)).print(show(decisions, path, gbps), _told(limits))


def _ways(names: list[str], world: int) -> dict[str, SendingCost]:
    from byteps_like.compression.curves import measure, measure_raw
    from byteps_like.compression.decision import BF16, RAW, SendingCost
    from byteps_like.compression.registry import codec_of
    from byteps_like.dtypes import DType

    ways = {RAW: SendingCost(4, 4, False, measure_raw()), BF16: SendingCost(2, 2, False, measure_raw(DType.BFLOAT16))}
    for name in names:
        codec = codec_of(name)
        ways[name] = SendingCost.of(codec, world, measure(codec, world))
    return ways


def _limits(ways: dict[str, SendingCost], path: Path) -> dict[str, float]:
    """The speed up to which each codec is faster than bf16, for a large tensor. Gb/s."""
    from byteps_like.compression.decision import BF16, RAW, break_even
    from byteps_like.planner.cluster import GOODPUT

    rates = [rate * GOODPUT for rate in _RATES]
    found = {}
    for name, way in ways.items():
        if name not in (RAW, BF16):
            found[name] = break_even(way, ways[BF16], SIZES[-1] // 4, path, rates) / GOODPUT
    return found


def show(decisions: list[Decision], path: Path, gbps: float) -> Table:
    """The table: a row per size; the fastest way is bold."""
    title = f"{path.workers} workers, {path.servers} servers, {gbps:g} Gb/s; times of a single tensor"
    table = Table(box=None, title=title, title_justify="left")
    for heading in ("fp32 bytes", *decisions[0].seconds, "fastest", "pieces", "vs raw"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in decisions:
        size = 4 * one.numel
        times = [
            f"[bold]{seconds * 1e3:.2f} ms[/bold]" if name == one.name else f"{seconds * 1e3:.2f} ms"
            for name, seconds in one.seconds.items()
        ]
        shown = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        table.add_row(shown, *times, one.name, str(one.pieces), f"{one.gain:.2f}x")
    return table


def _told(limits: dict[str, float]) -> str:
    pays = ", ".join(f"{name} {limit:.3g}" if limit else f"{name} never" for name, limit in limits.items())
    return f"\nFaster than bf16 up to (Gb/s, one core for encoding): {pays}" if pays else ""
