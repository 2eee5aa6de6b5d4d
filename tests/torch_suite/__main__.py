"""`make test-torch`: PyTorch's own tests of its distributed package over our backend.

    python -m tests.torch_suite [--backend gloo] [--ranks 8] [--jobs 2] [NAME ...]

Ends with 1 if a test fails, hangs or dies that excluded.toml doesn't name, or if one passes that it does.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
import tomllib
from pathlib import Path

from tests.torch_suite.cases import Case, Outcome, outcomes
from tests.torch_suite.shipped import TOO_FEW, Shipped

EXCLUDED = Path(__file__).with_name("excluded.toml")
SECONDS = 90.0
GRACE = 15.0
"""What torch's own deadline of a test, which prints all stacks, has before ours."""


class Suite:
    """One run, and its tally."""

    def __init__(self, shipped: Shipped, options: argparse.Namespace, excluded: dict[str, str]) -> None:
        self.shipped, self.options, self.excluded = shipped, options, excluded
        self.tally: collections.Counter[str] = collections.Counter()
        self.reasons: collections.Counter[str] = collections.Counter()
        self.bad: list[str] = []

    def run(self, names: list[str], ranks: int) -> None:
        """All of them, and once more with eight ranks those that find these too few."""
        small = []
        cases = [Case(name, lambda name=name: self._body(name, ranks), SECONDS + GRACE) for name in names]  # type: ignore[misc]
        for case, (kind, text), printed, seconds in outcomes(cases, self.options.jobs):
            if kind == "skipped" and text == TOO_FEW and ranks < 8:
                small.append(case.name)
                continue
            self.count(case.name, kind, text, f"{printed}\n{text}", seconds)
        if small:
            self.run(small, 8)

    def _body(self, name: str, ranks: int) -> Outcome:
        result = self.shipped.run(name, ranks)
        if result.skipped:
            return "skipped", result.skipped[0][1]
        failures = [text for _, text in result.failures + result.errors]
        return ("failed", "\n".join(failures)) if failures else ("passed", "")

    def count(self, name: str, kind: str, why: str, text: str, seconds: float) -> None:
        """One that has ended."""
        stale = kind == "passed" and name in self.excluded
        self.tally["excluded" if name in self.excluded and not stale else kind] += 1
        if kind == "skipped":
            self.reasons[why] += 1
        elif stale:
            self.bad.append(f"{name} passes: take it out of {EXCLUDED.name}")
        elif kind != "passed" and name not in self.excluded:
            self.bad.append(f"{name} {kind}")
            print(f"--- {name} ---\n{text}", flush=True)
        if self.options.verbose:
            print(f"{seconds:6.1f} s  {kind}  {name}", flush=True)

    def leave_out(self, why: str) -> None:
        """A test that torch's decorators leave out."""
        self.tally["skipped"] += 1
        self.reasons[why] += 1


def main() -> int:
    """Runs what the command line names, else all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tests; all without any")
    parser.add_argument("--backend", default="byteps")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="tests at a time")
    parser.add_argument("--verbose", action="store_true", help="a line for each test")
    options = parser.parse_args()
    # Registers the backend; and what is imported here isn't in each of some hundred processes.
    import byteps_like.collectives.communicator
    import byteps_like.torch.c10d.process_group  # noqa: F401

    began = time.monotonic()
    excluded = tomllib.loads(EXCLUDED.read_text(encoding="utf-8")).get(str(options.ranks), {})
    if options.backend != "byteps":
        excluded = {}
    suite = Suite(Shipped(options.backend, SECONDS), options, excluded)
    names = suite.shipped.names()
    if unknown := (set(options.names) | set(excluded)) - set(names):
        print(f"torch has no such tests: {', '.join(sorted(unknown))}")
        return 1
    for name in names:
        if (why := suite.shipped.why_not(name)) is not None:
            suite.leave_out(why)
    suite.run([name for name in options.names or names if suite.shipped.why_not(name) is None], options.ranks)
    if not options.names:
        print(*(f"{count:5}  {why}" for why, count in suite.reasons.most_common()), sep="\n")
    tally = ", ".join(f"{count} {kind}" for kind, count in suite.tally.most_common())
    print(f"{options.backend}, {options.ranks} ranks: {tally}, in {time.monotonic() - began:.0f} s")
    print(*suite.bad, sep="\n")
    return 1 if suite.bad else 0


if __name__ == "__main__":
    sys.exit(main())
