"""Our RDMA links beside perftest (`ib_write_bw`, `ib_send_lat`): same devices, sizes and counts, in turn, in one run.

    make bench-rdma                     the same as the next line, after all set-up
    python -m bench.internals.rdma      in the virtual machine of scripts/rdma_vm.sh, on any machine
    python -m bench.internals.rdma --address 10.0.0.1 --device mlx5_0      one device with itself
    python -m bench.internals.rdma --address 10.0.0.2 --device mlx5_0 --remote "ssh b" --remote-device mlx5_0  two hosts

Bandwidth: writes of 1 MiB; ours as frames written where the receiver has offered memory (`placed`), and into landing
slots (`slots`). Latency: one way, half of there and back, of small frames; perftest looks for completions without end,
or sleeps until one comes (`-e`), which is what links do after 20 us in vain. Ratios are of two runs of the same turn.
Both ends are processes of their own; the receiving ones are begun by the words of --remote, at the same path.
An emulated machine shows which share of perftest's rate is reached and how much is copied, not what a card does; and
where the host has other work, a wake-up in it waits for the emulator's turn, 4 to 20 ms: a run that takes too long is
given up and said. A line per figure goes to out/rdma.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.processes import ROOT, module

BENCH = ROOT / "build" / "bench" / "rdma_bench"
SMALL = (8, 1024)
CONNECT_SECONDS = 20
RUN_SECONDS = 60


class Fabric:
    """Who measures with whom: starts the receiving end, then the sending one, and gives what they printed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._remote = shlex.split(options.remote)

    def ours(self, what: str, size: int, count: int) -> dict[str, Any]:
        """One run of rdma_bench: its figures, and those of the receiving end."""
        options = self._options
        chosen = f"?gid={options.gid}" if options.gid is not None else ""
        url = f"rdma://{options.address}:0{chosen}{'&' if chosen else '?'}device={options.remote_device}"
        serving = self._begin([str(BENCH), "serve", url])
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        address += f"{'&' if '?' in address else '?'}device={options.device}&qps={options.qps}"
        sent = _run([str(BENCH), what, address, str(size), str(count)])
        received, _ = serving.communicate(timeout=CONNECT_SECONDS)
        return json.loads(sent) | json.loads(received)

    def perftest(self, tool: str, size: int, count: int, *more: str) -> list[float]:
        """One run of perftest: the columns of its table's line for this size."""
        options = self._options
        common = ["-s", str(size), "-n", str(count), "-F", "-p", str(options.port), *more]
        common += ["-x", str(options.gid)] if options.gid is not None else []
        common += ["-q", str(options.qps)] if tool.endswith("bw") else []
        serving = self._begin([tool, "-d", options.remote_device, *common])
        try:
            printed = self._ask([tool, "-d", options.device, *common, options.address], serving)
        finally:
            serving.kill()
            serving.communicate()
        rows = [line.split() for line in printed.splitlines() if line.split()[:1] == [str(size)]]
        if not rows:
            sys.exit(f"{tool}: no figures: {printed[-500:]}")
        return [float(column) for column in rows[-1]]

    def _ask(self, command: Sequence[str], serving: subprocess.Popen[str]) -> str:
        """What perftest's sending end prints. The receiving one says nothing when it listens, so this tries."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            done = _done(command)
            if done.returncode == 0 or time.monotonic() > deadline or serving.poll() is not None:
                return done.stdout + done.stderr
            time.sleep(0.2)

    def _begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._remote, *command], stdout=subprocess.PIPE, text=True)


def _run(command: Sequence[str]) -> str:
    done = _done(command)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}: status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def _done(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        sys.exit(
            f"{shlex.join(command)} has not ended after {RUN_SECONDS} s: fewer --pings, or a host with less to do?"
        )


def rates(fabric: Fabric, size: int, count: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Name -> a run that gives bytes per second, and of ours the counters."""

    def ours(what: str) -> dict[str, Any]:
        row = fabric.ours(what, size, count)
        placed = row["payload_placed"] / max(row["payload_received"], 1)
        return {"value": size * count / row["seconds"], "payload_sent": row["payload_sent"], "placed": placed}

    def rival() -> dict[str, Any]:
        return {"value": fabric.perftest("ib_write_bw", size, count)[3] * (1 << 20)}

    return {"ib_write_bw": rival, "placed": partial(ours, "placed"), "slots": partial(ours, "slots")}


def latencies(fabric: Fabric, size: int, count: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Name -> a run that gives seconds of one way, the mean of `count` times there and back."""

    def ours() -> dict[str, Any]:
        return {"value": fabric.ours("ping", size, count)["seconds"] / count / 2}

    def rival(*more: str) -> dict[str, Any]:
        return {"value": fabric.perftest("ib_send_lat", size, count, *more)[5] * 1e-6}

    return {"ib_send_lat": rival, "ib_send_lat -e": partial(rival, "-e"), "ping": ours}


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per run, contenders in turn; the first turn is not counted."""
    fabric = Fabric(options)
    cases = [("bytes per second", options.bytes, rates(fabric, options.bytes, options.count))]
    cases += [("seconds one way", size, latencies(fabric, size, options.pings)) for size in SMALL]
    for metric, size, contenders in cases:
        for turn in range(options.turns + 1):
            for name, contender in contenders.items():
                row = {"metric": metric, "bytes": size, "name": name, "turn": turn, **contender()}
                if turn > 0:
                    yield row


def measure_in_machine(arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same by this script in the virtual machine, between the two devices of its first cable."""
    here = ["--address", "10.77.1.1", "--device", "rxe0", "--remote-device", "rxe1", "--gid", "1", "--rows"]
    command = ["bash", str(ROOT / "scripts" / "rdma_vm.sh"), *module("bench.internals.rdma", *here, *arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    if done.returncode != 0:
        print(f"not all was measured: the machine's run ended with status {done.returncode}", file=sys.stderr)


def build() -> None:
    """Compiles rdma_bench where it has changed."""
    folder = str(BENCH.parent)
    configure = ["cmake", "-S", str(ROOT), "-B", folder, "-G", "Ninja"]
    configure += ["-DBYTEPS_LIKE_BENCH=ON", "-DBYTEPS_LIKE_PYTHON=OFF"]
    for command in (configure, ["cmake", "--build", folder, "--target", "rdma_bench"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def report(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    """JSON lines and the table: medians with quartiles, and the ratios to perftest of the same turns."""
    from bench.report import OUT, print_table, write_json_lines

    write_json_lines(OUT / "rdma.jsonl", vars(options), rows)
    table = []
    for metric, size in dict.fromkeys((row["metric"], row["bytes"]) for row in rows):
        these = [row for row in rows if (row["metric"], row["bytes"]) == (metric, size)]
        rival = {row["turn"]: row["value"] for row in these if row["name"] == these[0]["name"]}
        for name in dict.fromkeys(row["name"] for row in these):
            own = [row for row in these if row["name"] == name]
            table.append((name, f"{size}", *cells(own, rival, metric)))
    columns = ("", "bytes", "median", "quartiles", "of perftest", "quartiles", "written in place")
    print_table("RDMA links beside perftest", columns, table)


def cells(rows: Sequence[dict[str, Any]], rival: Mapping[int, float], metric: str) -> list[str]:
    """Of one contender's turns: median, quartiles, both of the ratio, and the share that the peer wrote in place."""
    from bench.report import Spread

    scale, unit = (1e-6, "MB/s") if metric == "bytes per second" else (1e6, "us")
    values = Spread.of([row["value"] * scale for row in rows])
    ratios = Spread.of([row["value"] / rival[row["turn"]] for row in rows])
    placed = sorted({f"{row['placed']:.3f}" for row in rows if "placed" in row})
    return [
        f"{values.median:.1f} {unit}",
        f"{values.low:.1f}-{values.high:.1f}",
        f"{ratios.median:.2f}",
        f"{ratios.low:.2f}-{ratios.high:.2f}",
        ", ".join(placed),
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of the receiving end; none: in the virtual machine")
    parser.add_argument("--device", help="RDMA device of this end")
    parser.add_argument("--remote-device", help="of the receiving end (default: the same)")
    parser.add_argument("--remote", default="", help='what begins a command at the receiving end, "ssh b"; none: here')
    parser.add_argument("--gid", type=int, help="index of the GID at both ends (default: as the libraries choose)")
    parser.add_argument("--qps", type=int, default=1, help="queue pairs")
    parser.add_argument("--port", type=int, default=18515, help="of perftest")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of a write")
    parser.add_argument("--count", type=int, default=50, help="writes of a run")
    parser.add_argument("--pings", type=int, default=200, help="of a run")
    parser.add_argument("--turns", type=int, default=4, help="that are counted, after one that is not")
    parser.add_argument("--rows", action="store_true", help="only a line of JSON per run, as they come")
    options = parser.parse_args(arguments)
    options.remote_device = options.remote_device or options.device
    return options


def main(arguments: Sequence[str]) -> None:
    """Measures, shows, writes."""
    options = parse(arguments)
    if not options.rows:
        build()
    if options.address is None:
        if shutil.which("ib_write_bw") is None:
            sys.exit("no ib_write_bw: bash scripts/setup.sh rdma bench installs it (Debian: perftest)")
        rows = list(measure_in_machine(arguments))
    elif options.rows:
        for row in measure(options):
            print(json.dumps(row), flush=True)
        return
    else:
        rows = list(measure(options))
    report(rows, options)


if __name__ == "__main__":
    main(sys.argv[1:])
