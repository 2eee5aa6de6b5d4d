"""Ranks without torch and without a scheduler, for benchmarks and tests: they find each other through a folder.

`run` starts a command once per rank, on one host or spread over the hosts of a lab; the command calls `join`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from byteps_like.bench.board import Board
from byteps_like.bench.processes import wait_all
from byteps_like.collectives.communicator import Communicator, Peer
from byteps_like.config import Config
from byteps_like.launch.lab.hosts import Lab

_RANK, _SIZE, _FOLDER = "BENCH_RANK", "BENCH_SIZE", "BENCH_FOLDER"
_SECRET = b"a benchmark among processes of one user".ljust(48, b".")


@dataclass(frozen=True)
class BenchSeat:
    """This process's place."""

    rank: int
    size: int
    folder: Path

    def save(self, result: object) -> None:
        """Leaves JSON for the one who called `run`, who reads it by `results`."""
        (self.folder / f"rank{self.rank}.json").write_text(json.dumps(result), encoding="utf-8")


def host_of(rank: int, ranks: int, hosts: int) -> int:
    """Neighbouring ranks share a host; all hosts have equally many."""
    return rank * hosts // ranks


def run(command: Sequence[str], ranks: int, folder: Path, lab: Lab | None = None, timeout: float = 120.0) -> None:
    """Runs `command` as every rank, to its end. `folder` is empty, and on the same machine as all ranks.

    Raises SystemCallError if a rank fails (it has printed why), DeadlineError after `timeout` seconds.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    common = {**os.environ, "PYTHONPATH": path, _SIZE: str(ranks), _FOLDER: str(folder)}
    processes = []
    for rank in range(ranks):
        words, own = list(command), {_RANK: str(rank)}
        if lab is not None:
            host = lab.hosts[host_of(rank, ranks, len(lab.hosts))]
            words, own["BYTEPS_LIKE_HOST"] = host.command(words), host.address
        processes.append(subprocess.Popen(words, env={**common, **own}, start_new_session=True))
    wait_all(processes, timeout)


def results(folder: Path, ranks: int) -> list[object]:
    """What the ranks have saved, by rank."""
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def seat() -> BenchSeat:
    """Of a process that `run` started."""
    return BenchSeat(int(os.environ[_RANK]), int(os.environ[_SIZE]), Path(os.environ[_FOLDER]))


@contextmanager
def join() -> Iterator[tuple[BenchSeat, Communicator]]:
    """The world of all ranks; blocks until all have come. Leaves it once all are at the end of the block."""
    here = seat()
    board = Board(str(here.folder), here.rank, here.size)
    config = Config.from_env(role="worker", rank=here.rank, world_size=here.size)
    communicator = Communicator(config, here.folder.name, _SECRET)
    try:
        _address(here, here.rank).write_text(json.dumps(asdict(communicator.own)), encoding="utf-8")
        board.barrier()
        communicator.join(1, here.rank, [_peer(here, rank) for rank in range(here.size)])
        yield here, communicator
        communicator.group("leave").barrier().wait(60.0)
    finally:
        communicator.close()


def _address(here: BenchSeat, rank: int) -> Path:
    return here.folder / f"address{rank}.json"


def _peer(here: BenchSeat, rank: int) -> Peer:
    record = json.loads(_address(here, rank).read_text(encoding="utf-8"))
    return Peer(tuple(record["urls"]), record["host_id"], record["host"], record["pid"])
