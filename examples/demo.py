"""Trains digits.py twice, in one process and with several workers and servers, and shows that the losses agree.

    make demo
    python examples/demo.py --workers 2 --servers 2

The second run sends its data over TCP, as between machines; by default processes of one host share memory instead.
Writes out/demo.png, out/one.json and out/distributed.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from _demo_report import Result, plot, summary
from rich.console import Console

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="of the distributed run (default 2)")
    parser.add_argument("--servers", type=int, default=2, help="of the distributed run (default 2)")
    parser.add_argument("--epochs", type=int, default=15, help="of both runs (default 15)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the plot and the figures")
    return parser.parse_args()


def train(launcher: list[str], args: argparse.Namespace, name: str) -> Result:
    """One run of digits.py; its result and how long it took from start to end."""
    path = args.out / f"{name}.json"
    script = [sys.executable, str(HERE / "digits.py"), "--epochs", str(args.epochs), "--json", str(path)]
    started = time.perf_counter()
    code = subprocess.run([*launcher, *script], check=False).returncode
    if code:
        sys.exit(code)
    return {**json.loads(path.read_text()), "seconds": time.perf_counter() - started}


def main() -> None:
    args = arguments()
    console = Console()
    args.out.mkdir(parents=True, exist_ok=True)
    console.rule("one process")
    one = train([], args, "one")
    console.rule(f"{args.workers} workers + {args.servers} servers")
    run = [sys.executable, "-m", "byteps_like", "run", "-n", str(args.workers), "-s", str(args.servers)]
    many = train([*run, "--env", "BYTEPS_LIKE_TRANSPORT=tcp", "--"], args, "distributed")
    path = args.out / "demo.png"
    title = f"Digits: one process and {args.workers} workers with {args.servers} summation servers"
    plot(one, many, title, path)
    console.print(summary(one, many, args.servers, path))


if __name__ == "__main__":
    main()
