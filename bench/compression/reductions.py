"""Codecs against fp32, bf16 and gloo: time, bytes and error of one reduction, in turn, by the same processes.

    python -m bench.compression.reductions                                  4 + 4 hosts at 100, 400 and 1000 Mb/s (root)
    python -m bench.compression.reductions --rates none                     one host: 2 workers, 1 server
    python -m bench.compression.reductions --route allreduce --servers 0    two-hop collectives instead of servers

Time is from the last rank's start to the last rank's end, medians; of bf16 with both casts. The error is that of the
sum, squared, relative to its own square, on normal and log-normal numbers and on gradients of the examples' GPT.
Leaves out/compression.jsonl, and a PNG of time against error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import report
from bench.compression.reductions_plan import BF16, DATA, FP32, GLOO, UNCODED, Plan
from bench.processes import module
from byteps_like.compression.codec import Trait
from byteps_like.compression.registry import CODECS, SHORT, codec_of
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job

LOSSLESS = ("bitmap", "blocksparse", "coo")
FOR_SPARSE_ONLY = ("sketch",)
"""Of dense gradients they would have to be told that nothing is zero, and be plain arrays."""
RATES = ("100mbit", "400mbit", "1gbit")
GPT_NUMEL = 600_000


def default_codecs() -> list[str]:
    """All that can be summed, by their short names where they have some; a cast to bf16 is a contender anyway."""
    named = {codec.name for codec in SHORT.values()}
    others = [kind.name for kind in CODECS if kind.name not in named and kind.trait is not Trait.OPAQUE]
    return [name for name in [*SHORT, *others] if name not in (*UNCODED, *FOR_SPARSE_ONLY)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--codecs", nargs="+", default=default_codecs(), metavar="CODEC", help="as compression= takes them"
    )
    parser.add_argument("--rates", nargs="+", default=RATES, help='speeds of the links, or "none" for one host')
    parser.add_argument("--workers", type=int, default=0, help="worker hosts (4), or workers on one host (2)")
    parser.add_argument("--servers", type=int, default=-1, help="server hosts (4), or servers on one host (1)")
    parser.add_argument("--route", default="server", choices=["server", "allreduce"])
    parser.add_argument("--size", type=int, default=1 << 26, metavar="BYTES", help="of the fp32 tensor (64 MB)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=report.OUT / "compression.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "compression.png")
    return parser.parse_args()


def measure(arguments: argparse.Namespace, rate: str) -> list[dict[str, Any]]:
    """One row per contender."""
    lab_wanted = rate != "none"
    workers = arguments.workers or (4 if lab_wanted else 2)
    servers = arguments.servers if arguments.servers >= 0 else (4 if lab_wanted else 1)
    with tempfile.TemporaryDirectory(prefix="compression-") as folder:
        plan = Plan(
            codecs={name: codec_of(name).spec() for name in arguments.codecs},
            route=arguments.route,
            size=arguments.size,
            error_size=4 * GPT_NUMEL,
            repeats=arguments.repeats,
            folder=folder,
            interface="eth0" if lab_wanted else "lo",
        )
        command = module("bench.compression.reductions_worker", str(plan.save()))
        options = RunOptions(command, workers, servers, quiet=True)
        if not lab_wanted:
            code = run_job(options)
        else:
            with Lab(workers + servers, rate=rate) as lab:
                code = run_in_lab(lab, options)
        if code:
            sys.exit(code)
        ranks = [
            [json.loads(line) for line in (Path(folder) / f"rank{rank}.jsonl").read_text().splitlines()]
            for rank in range(workers)
        ]
    return [row(rate, arguments, workers, servers, turn) for turn in zip(*ranks, strict=True)]


def row(rate: str, arguments: argparse.Namespace, workers: int, servers: int, turn: Any) -> dict[str, Any]:
    """Of one contender, whose results on all ranks are `turn`."""
    times = [
        max(one["ends"][number] for one in turn) - max(one["starts"][number] for one in turn)
        for number in range(len(turn[0]["starts"]))
    ]
    spread = report.Spread.of(times)
    return {
        "bench": "compression", "rate": rate, "route": arguments.route, "workers": workers, "servers": servers,
        "bytes": arguments.size, "contender": turn[0]["contender"], "seconds": spread.median, "low": spread.low,
        "high": spread.high, "count": spread.count, "wire_sent": max(one["wire_sent"] for one in turn),
        "wire_received": max(one["wire_received"] for one in turn), "nmse": turn[0]["nmse"],
    }  # fmt: skip


def show(rate: str, rows: list[dict[str, Any]]) -> None:
    """The table of one rate: each codec beside fp32, bf16 and gloo."""
    seconds = {one["contender"]: one["seconds"] for one in rows}
    size = rows[0]["bytes"]
    columns = (
        "codec",
        "time",
        "vs fp32",
        "vs bf16",
        "vs gloo",
        "sent/M",
        "received/M",
        *(f"NMSE {kind}" for kind in DATA),
    )
    cells = [
        (
            one["contender"], report.show_spread(report.Spread(one["seconds"], one["low"], one["high"], one["count"])),
            *(f"{seconds[other] / one['seconds']:.2f}" for other in (FP32, BF16, GLOO)),
            f"{one['wire_sent'] / size:.4f}", f"{one['wire_received'] / size:.4f}",
            *(f"{one['nmse'][kind]:.2g}" for kind in DATA),
        )
        for one in rows
    ]  # fmt: skip
    where = f"{rows[0]['workers']} workers, {rows[0]['servers']} servers, {rows[0]['route']} route"
    path = "one host" if rate == "none" else f"links of {rate}"
    report.print_table(f"{report.show_bytes(size)} of fp32: {where}, {path}", columns, cells)


def plot(path: Path, rate: str, rows: list[dict[str, Any]]) -> None:
    """Time against error on gradients; without what leaves out zeros, since there are none."""
    points = {
        one["contender"]: (max(one["nmse"]["gradients"], 1e-17), one["seconds"])
        for one in rows
        if one["contender"] not in LOSSLESS
    }
    report.plot_scatter(path, f"64 MB, links of {rate}", ("error on gradients (NMSE)", "seconds"), points)


def main() -> None:
    arguments = parse_arguments()
    found: list[dict[str, Any]] = []
    for rate in arguments.rates:
        rows = measure(arguments, rate)
        show(rate, rows)
        found += rows
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, found)
    last = [one for one in found if one["rate"] == ("400mbit" if "400mbit" in arguments.rates else arguments.rates[-1])]
    plot(arguments.plot, last[0]["rate"], last)
    print(f"wrote {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
