"""`byteps-like timeline`: records, merges and analyses timelines of training steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from byteps_like.config import Config

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Records, merges and analyses timelines of training steps."
)
_RECORDING = """
To record a job, set BYTEPS_LIKE_TRACE=DIR (or FILE.json) in the environment of all its processes, and optionally
BYTEPS_LIKE_TRACE_STEPS=10:19 to select steps; or call byteps_like.torch.trace(DIR, steps=10) on all ranks.

[bold]Example[/bold]  BYTEPS_LIKE_TRACE=trace byteps-like run -n 2 -s 1 -- python train.py; """
Source = Annotated[Path, typer.Argument(metavar="FILE|DIR", help="Merged trace, or directory of its parts.")]


@app.command(epilog="[bold]Example[/bold]  byteps-like timeline record /tmp/trace --steps 20 --scheduler node1:7077")
def record(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory on each host to which members write their parts.")
    ],
    steps: Annotated[int, typer.Option(min=1, help="Number of whole steps.")] = 10,
    scheduler: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the job's scheduler.")] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
) -> None:
    """Makes all ranks and servers of a running job record their next steps. Returns at once.

    The environment gives scheduler, job and secret, as for a worker. Members write only below their working directory,
    the temporary directory and BYTEPS_LIKE_TRACE_ROOT. Afterwards, copy the parts of all hosts into one directory.
    """
    from byteps_like.control.calls.client import order_record
    from byteps_like.timeline.orders import NEXT, RecordingOrder

    told = order_record(
        Config.from_env(scheduler=scheduler, job=job), RecordingOrder(str(directory.absolute()), NEXT, steps)
    )
    print(f"{told} members record {steps} steps into {directory.absolute()}")


@app.command(epilog=_RECORDING + "byteps-like timeline merge trace")
def merge(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with the parts of all hosts.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Output file; default: DIR/trace.json.")] = None,
) -> None:
    """Merges the parts of all ranks and servers into one file for ui.perfetto.dev or chrome://tracing.

    A name that ends with .gz compresses the file; both viewers can read it.
    """
    from byteps_like.timeline.perfetto import merged, write

    target = output or directory / "trace.json"
    trace = merged(directory)
    write(trace, target)
    events = sum(event["ph"] == "X" for event in trace["traceEvents"])
    print(f"{target}: {events} events of {len(trace['otherData']['processes'])} processes")
    if trace["otherData"]["lost"]:
        print(f"{trace['otherData']['lost']} records were lost, because they came faster than they could be written")


@app.command(epilog=_RECORDING + "byteps-like timeline report trace --html report.html")
def report(
    source: Source,
    png: Annotated[Path | None, typer.Option(help="Also draw the result to this file (.png, .svg or .pdf).")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with tables and the drawing to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as one JSON object.")] = False,
) -> None:
    """Shows the shares of compute and exposed communication in steps, who waited for whom, and stragglers."""
    from rich.console import Console

    from byteps_like.timeline.analysis import Analysis
    from byteps_like.timeline.perfetto import load
    from byteps_like.timeline.report import show, tables, verdict

    analysis = Analysis(load(source)["traceEvents"])
    if as_json:
        found = {
            title: [dict(zip(heading, row, strict=True)) for row in rows] for title, heading, rows in tables(analysis)
        }
        print(json.dumps({"tables": found, "verdict": verdict(analysis)}, indent=1))
    else:
        show(analysis, Console())
    if png is not None:
        from byteps_like.timeline.draw import draw

        draw(analysis, png)
    if html is not None:
        from byteps_like.timeline.page import write_page

        write_page(analysis, html, str(source))
