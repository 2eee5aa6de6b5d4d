"""Ranks as threads of this process over native servers: the engine's own way, with everything that it sends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from byteps_like.torch.job import runtime
from byteps_like.worker.api import Worker
from tests.contract.mixed_job import Maker, MixedJob, in_threads, native_worker


def run_native_job(
    size: int,
    body: Callable[..., Any],
    *args: Any,
    around: Callable[[], Any] = nullcontext,
    wrapped: Callable[[Worker], Any] = lambda worker: worker,
    make: Maker = native_worker,
    **settings: Any,
) -> list[Any]:
    """Runs `body(bps, rank, size, *args)` on every rank, within `around()`; their results. One server."""
    import byteps_like.torch as bps

    failures: list[Exception] = []
    job = MixedJob([make] * size, hosts=("",), **settings)

    def main(worker: Worker) -> Any:
        torch.set_num_threads(1)
        try:
            with around(), runtime.bound(wrapped(worker)):
                return body(bps, worker.rank, size, *args)
        except Exception as error:
            failures.append(error)  # the others' follow from it
            raise

    try:
        return in_threads([partial(main, worker) for worker in job.workers])
    except Exception as error:  # noqa: BLE001 - the first that failed is raised
        raise (failures or [error])[0] from None
    finally:
        job.close()
