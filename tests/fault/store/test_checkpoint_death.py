"""Ranks of real jobs that die while a store is saved: what was there before is whole, and the others hear of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.errors import BytePSLikeError
from byteps_like.store.saving import manifest
from tests.multiprocess.real_world import Pool, job

LIKE = np.zeros(200_000, np.float32)


def _opened(bps: Any) -> Any:
    return bps.Store("s", {"w": LIKE}, update="momentum:lr=1", consistency="asp", combine="sum")


def save_then_die(bps: Any, rank: int, size: int, folder: str) -> tuple[str, str]:
    """The second time rank 1 is killed when it has written something."""
    store = _opened(bps)
    store.push("w", LIKE + 1).wait()
    assert store.checkpoint(folder) == size
    store.push("w", LIKE + 1).wait()
    if rank == 1:
        write = manifest.SavedPartWriter.write

        def die(self: Any, chunks: Any) -> Any:
            write(self, chunks)
            os.kill(os.getpid(), signal.SIGKILL)

        manifest.SavedPartWriter.write = die  # type: ignore[method-assign]
    try:
        store.checkpoint(folder)
    except BytePSLikeError as error:
        return type(error).__name__, str(error)
    return "", ""


def restore(bps: Any, rank: int, size: int, folder: str) -> list[float]:
    """What servers have then."""
    store = _opened(bps)
    store.restore(folder)
    out = np.empty_like(LIKE)
    store.pull("w", out).wait()
    return sorted(set(out.tolist()))


def test_a_rank_that_is_killed_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    pool = Pool(3)
    try:
        with job(3, 2, partition_bytes=65_536) as cluster:
            answers = pool.answers(cluster, save_then_die, str(tmp_path))
        for rank in (0, 2):
            ok, (name, text) = answers[rank]
            assert ok and name == "PeerLostError" and "worker 1" in text, text
    finally:
        pool.close()
    pool = Pool(2)
    try:
        with job(2, 1) as cluster:
            for found in pool.run(cluster, restore, str(tmp_path)):
                assert len(found) == 1 and abs(found[0] + sum((1, 1.9, 2.71))) < 1e-5, found
    finally:
        pool.close()
