"""What an elastic job's processes make before they meet the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.runtime import Runtime
from byteps_like.worker.local import LocalWorker


@contextmanager
def apart() -> Iterator[None]:
    """In an elastic job, the block is in a world of one, which ends with it; else it changes nothing.

    Who joins a job that runs makes its optimizer while the others wait for it in `elastic.run`, or still make steps:
    they take no part in what the optimizer would agree on. As in any new world, it does so at its first step.
    """
    config = _runtime.settings()
    if not config.elastic:
        yield
        return
    alone = Runtime(LocalWorker(config.partition_bytes), config.partition_bytes, config)
    try:
        with _runtime.using(alone):
            yield
    finally:
        alone.close()
