"""`byteps-like plan`: predicts the performance of a cluster."""

from __future__ import annotations

import json as jsons
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from byteps_like.cli.bench import parse_bytes
from byteps_like.cli.plan_codecs import EXAMPLES as CODECS_EXAMPLES
from byteps_like.cli.plan_codecs import codecs
from byteps_like.cli.plan_shift import shift
from byteps_like.errors import InvalidArgumentError

if TYPE_CHECKING:
    from byteps_like.planner.cluster import Cluster, Settings
    from byteps_like.planner.study import StudyRow
    from byteps_like.planner.workload import Workload

app = typer.Typer(no_args_is_help=True, invoke_without_command=True)
app.command(no_args_is_help=True)(shift)
app.command(epilog=CODECS_EXAMPLES)(codecs)

MOST_ROWS = 9
_LEAST_WIDTH = 110
_EXAMPLES = (
    "[bold]Examples[/bold]  byteps-like plan --model vgg16 --workers 32 --gbps 25 --servers 0..32  ·  "
    "byteps-like plan --model bert-large --workers 16 --gbps 10 --servers 0,8,16 --cross-barrier --plot plan.svg  ·  "
    "byteps-like run -n 2 -s 1 -- byteps-like plan --calibrate costs.json"
)


@app.callback(epilog=_EXAMPLES)
def plan(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="vgg16, resnet50, bert-base, bert-large, gpt2, or a workload's JSON file.")
    ] = "",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded trace of a job's steps, instead of a model.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Total number of workers.")] = 8,
    per_host: Annotated[
        int, typer.Option("--workers-per-host", min=1, help="Number of workers that share a network card.")
    ] = 1,
    servers: Annotated[
        str, typer.Option("--servers", "-s", help="Numbers of server machines without workers: 4, 0..32 or 0,8,16.")
    ] = "0..8",
    beside: Annotated[bool, typer.Option("--beside", help="Also run a server on each worker host.")] = False,
    route: Annotated[
        str, typer.Option(help="servers, allreduce, or auto (all-reduce if there are no servers).")
    ] = "auto",
    gbps: Annotated[
        float,
        typer.Option(min=0.0, help="Rate of each network card per direction, in Gb/s; 0: as calibrated, else 10."),
    ] = 0.0,
    server_gbps: Annotated[
        float, typer.Option(min=0.0, help="Rate of the server machines' cards in Gb/s; 0: same as --gbps.")
    ] = 0.0,
    compute_seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds of forward and backward per step; 0: from the model and --flops.")
    ] = 0.0,
    batch: Annotated[
        int, typer.Option(min=0, help="Images or tokens per worker and step; 0: the model's default.")
    ] = 0,
    flops: Annotated[float, typer.Option(help="FLOP/s that a worker achieves.")] = 1e13,
    cross_barrier: Annotated[
        bool, typer.Option("--cross-barrier", help="The next forward waits per layer, not for all.")
    ] = False,
    fifo: Annotated[bool, typer.Option("--fifo", help="Send in order of readiness, without priorities.")] = False,
    partition_bytes: Annotated[str, typer.Option(help="The setting partition_bytes: 512k, 4M.")] = "4M",
    credit_bytes: Annotated[str, typer.Option(help="The setting credit_bytes.")] = "1M",
    costs: Annotated[Path | None, typer.Option(metavar="FILE", help="File that --calibrate has written.")] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead, measure this cluster (run it as the worker of a job) and write FILE."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the result as PNG or SVG.")] = None,
) -> None:
    """Simulates training steps on a cluster for each number of servers.

    Prints the step time, the efficiency, the bottleneck, and the gain of one more server, of links twice as fast and of
    half the bytes.
    """
    if context.invoked_subcommand is not None:
        return
    if calibrate is not None:
        _calibrate(calibrate)
        return
    question = PlanQuestion(workers, per_host, beside, gbps, server_gbps, costs)
    workload = _workload(model, trace, batch, compute_seconds, flops)
    settings = _settings(partition_bytes, credit_bytes, fifo, cross_barrier)
    cluster, counts = question.cluster(), routed(parse_counts(servers), route, beside)
    rows = _studied(workload, cluster, counts, settings, quiet=json)
    if json:
        print(jsons.dumps({"workload": workload.name, "rows": [row.record() for row in rows]}, indent=1))
    else:
        width = Console().width
        Console(width=max(width, _LEAST_WIDTH)).print(show(workload, cluster, rows))
    if plot is not None:
        draw(plot, workload, cluster, rows)


@dataclass(frozen=True)
class PlanQuestion:
    """The cluster as it was asked for."""

    workers: int
    per_host: int
    beside: bool
    gbps: float
    server_gbps: float
    costs: Path | None

    def cluster(self) -> Cluster:
        """Rates are of payload: a line carries 0.956 of its bits in TCP segments of full frames."""
        from byteps_like.planner.calibrate import Calibration
        from byteps_like.planner.cluster import GOODPUT, Cluster, ClusterCosts

        measured = Calibration.read(self.costs) if self.costs else None
        rate = self.gbps * GOODPUT or (measured.rate if measured else 10 * GOODPUT)
        return Cluster(
            self.workers, rate=rate, server_rate=self.server_gbps * GOODPUT or None, per_host=self.per_host,
            colocated=self.beside, costs=measured.costs if measured else ClusterCosts(),
        )  # fmt: skip


def parse_counts(text: str) -> list[int]:
    """Numbers of servers of "4", "0..32" (at most MOST_ROWS of them) or "0,8,16". Raises InvalidArgumentError."""
    from byteps_like.planner.study import thinned

    try:
        if ".." in text:
            first, last = map(int, text.split(".."))
            found = thinned(range(first, last + 1), MOST_ROWS)
        else:
            found = [int(number) for number in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise InvalidArgumentError(f"--servers {text} is not valid; write 4, 0..32 or 0,8,16")
    return found


def routed(counts: list[int], route: str, beside: bool) -> list[int]:
    """Those that go this way. Raises InvalidArgumentError if none do."""
    if route not in ("auto", "servers", "allreduce"):
        raise InvalidArgumentError(f"--route {route} is not valid; use auto, servers or allreduce")
    if route == "allreduce":
        found = [] if beside else [0]
    else:
        found = [count for count in counts if count or beside or route == "auto"]
    if not found:
        raise InvalidArgumentError(f"--route {route} contradicts --servers or --beside")
    return found


def _workload(model: str, trace: Path | None, batch: int, compute_seconds: float, flops: float) -> Workload:
    from byteps_like.planner import workloads
    from byteps_like.planner.trace import from_trace
    from byteps_like.planner.workload import Workload

    if (trace is None) == (not model):
        raise InvalidArgumentError("give exactly one workload: --model NAME, --model FILE.json or --trace FILE")
    if trace is not None or Path(model).suffix == ".json":
        found = from_trace(trace) if trace is not None else Workload.read(model)
        return found.scaled(compute_seconds=compute_seconds or None)
    found = workloads.load(model)
    found = replace(found, batch=batch or found.batch)
    return found.scaled(compute_seconds=compute_seconds or found.compute * found.batch / flops)


def _settings(partition_bytes: str, credit_bytes: str, fifo: bool, cross_barrier: bool) -> Settings:
    from byteps_like.planner.cluster import SendOrder, Settings

    order = SendOrder.FIFO if fifo else None
    sizes = parse_bytes(partition_bytes), parse_bytes(credit_bytes)
    return Settings(partition_bytes=sizes[0], credit_bytes=sizes[1], order=order, barrier=not cross_barrier)


def _studied(
    workload: Workload, cluster: Cluster, counts: list[int], settings: Settings, quiet: bool
) -> list[StudyRow]:
    from byteps_like.planner.study import study

    console = Console(stderr=True, quiet=quiet)
    with console.status("simulating") as status:
        return list(study(workload, cluster, counts, settings, lambda text: status.update(f"simulating {text}")))


def show(workload: Workload, cluster: Cluster, rows: list[StudyRow]) -> Table:
    """The table; gains are step time now by step time then."""
    title = (
        f"{workload.name}, {workload.nbytes / 1e6:.3g} MB of gradients, {workload.compute * 1e3:.1f} ms of compute; "
        f"{cluster.workers} workers, {cluster.rate / 1e9 * 8:.2f} Gb/s of payload"
    )
    table = Table(box=None, title=title, title_justify="left")
    unit = f"{workload.unit}/s"
    for heading in ("servers", "step", unit, "efficiency", "one more", "links x 2", "bytes / 2"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    best = min(row.prediction.step for row in rows)
    for row in rows:
        found = row.prediction
        table.add_row(
            str(row.servers) if row.servers or cluster.colocated else "0 (ring)", f"{found.step * 1e3:.1f} ms",
            f"{workload.batch * cluster.workers / found.step:.4g}", f"{found.efficiency * 100:.0f} %",
            *(f"{row.gain(step):.2f}x" for step in (row.one_more, row.twice_the_rate, row.half_the_bytes)),
            found.bottleneck, style="bold" if found.step == best else "",
        )  # fmt: skip
    return table


def draw(path: Path, workload: Workload, cluster: Cluster, rows: list[StudyRow]) -> None:
    """Step times over the number of servers, as they are, with faster links and with fewer bytes."""
    from byteps_like.bench.report import plot_curves

    servers = [float(row.servers) for row in rows]
    series: dict[str, Any] = {
        "as configured": (servers, [row.prediction.step for row in rows]),
        "links twice as fast": (servers, [row.twice_the_rate for row in rows]),
        "half the bytes": (servers, [row.half_the_bytes for row in rows]),
        "limit: compute": (servers, [workload.compute] * len(rows)),
    }
    title = f"{workload.name} on {cluster.workers} workers, {cluster.rate / 1e9 * 8:.2f} Gb/s of payload"
    plot_curves(path, title, ("servers", "seconds per step"), series)


def _calibrate(path: Path) -> None:
    from byteps_like.config import Config
    from byteps_like.planner.calibrate import calibrate
    from byteps_like.worker.session import connect

    worker = connect(Config.from_env())
    try:
        found = calibrate(worker)
        if worker.rank == 0:
            found.save(path)
            print(f"{found}\nwritten to {path}; use it with: byteps-like plan --costs {path}")
        worker.barrier()
    finally:
        worker.close()
