"""Functions on servers: gradient descent with an update in Python, and a step size that servers help to choose.

    export BYTEPS_LIKE_SERVER_IMPORTS=examples.server_functions
    byteps-like run -n 2 -s 1 -- python examples/server_functions.py

Each rank has a part of the rows of a least-squares problem. An update of our own, `braked`, makes old gradients count
less; `Store.call` has servers compute norms of vectors that never travel. See docs/how-to/server-functions.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from byteps_like.store import Pushed, command, function

Array = np.ndarray[Any, Any]


@function("braked", state=1)
def braked(value: Array, state: Array, push: Pushed) -> None:
    """Momentum; a gradient that is `age` versions old counts 1/(1 + age)."""
    state[0] = 0.5 * state[0] + push.gradient / (1 + push.age)
    value -= (push.lr or 0.01) * state[0]


@command("largest")
def largest(views: Sequence[Array], scalars: Mapping[str, float]) -> dict[str, float]:
    """How many elements are greater than `limit`, of all partitions together."""
    return {"count": float((np.abs(views[0]) > scalars["limit"]).sum())}


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("--size", type=int, default=2000, help="unknowns (default 2000)")
    known.add_argument("--steps", type=int, default=40, help="of each rank (default 40)")
    args = known.parse_args()

    import byteps_like.torch as bps  # by workers only: servers import this file, too

    bps.init()
    draw = np.random.default_rng(1)
    wanted = draw.standard_normal(args.size)
    scales = np.random.default_rng(bps.rank()).uniform(0.5, 1.5, args.size)
    weights = np.zeros(args.size)
    kept = {"w": weights, "old": weights}
    store = bps.Store("least squares", kept, consistency="ssp:s=2", update="function:braked")
    for _ in range(args.steps):
        store.pull("w", weights).wait()
        error = weights - wanted
        store.push("w", scales * error, lr=0.1, loss=0.5 * float(scales @ error**2))
    store.pull("w", weights).wait()
    bps.barrier()
    if bps.rank() == 0:
        norm = math.sqrt(store.call("dot", ["w", "w"])["dot"])
        count = store.call("largest", "w", limit=2.0)["count"]
        store.call("copy", ["w", "old"])
        print(f"rank 0: norm {norm:.2f} of {np.linalg.norm(wanted):.2f}, {count:.0f} elements beyond 2", flush=True)
    bps.barrier()
    bps.shutdown()


if __name__ == "__main__":
    main()
