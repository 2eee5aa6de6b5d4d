"""Bodies of ranks on threads, each with the runtime of a native worker of one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from byteps_like.torch.job import runtime
from tests.contract.mixed_job import in_threads


def by_servers(runtimes: list[runtime.Runtime], body: Callable[[int], Any]) -> list[Any]:
    """What `body(rank)` returns, by rank."""

    def main(rank: int) -> Any:
        torch.set_num_threads(1)
        with runtime.using(runtimes[rank]):
            return body(rank)

    return in_threads([lambda rank=rank: main(rank) for rank in range(len(runtimes))])
