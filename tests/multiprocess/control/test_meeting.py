"""Ranks that were given no scheduler meet, whoever has started them; one that can't start is named by the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("byteps_like._core")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import byteps_like.torch as bps
from tests.multiprocess import warm
from tests.multiprocess.real_world import job
from tests.ports import HeldPorts

SECONDS = 60
FOREIGN = ("BYTEPS_", "DMLC_", "OMPI_", "PMI", "MPI_", "MV2_", "SLURM_", "TORCHELASTIC_", "MASTER_")
PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")


def meet() -> list[tuple[float, ...]]:
    found = []
    for _ in range(2):  # once more after it was left
        bps.init()
        total = bps.push_pull(torch.tensor([bps.rank() + 1.0]), average=False, name="rank").item()
        found.append((bps.rank(), bps.size(), bps.local_rank(), bps.local_size(), total))
        bps.shutdown()
    return found


def meet_in_a_group() -> list[tuple[float, ...]]:
    dist.init_process_group("gloo")
    found = meet()
    dist.destroy_process_group()
    return found


def meet_before_a_group() -> list[tuple[float, ...]]:
    found = meet()
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
    return found


def meet_as_a_group() -> None:
    dist.init_process_group("byteps")
    dist.barrier()
    dist.destroy_process_group()


class Rank:
    """A process with the environment of one rank, and what it says: its warnings, then its result or its error."""

    def __init__(self, body: Callable[[], Any], environment: dict[str, str]) -> None:
        context = warm.context()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_run, args=(theirs, body.__name__, environment), daemon=True)
        self.process.start()
        theirs.close()
        self.warnings: list[str] = []

    def said(self) -> tuple[str, Any]:
        """The next of it."""
        assert self._pipe.poll(SECONDS), f"nothing within {SECONDS} s; before: {self.warnings}"
        kind, what = self._pipe.recv()
        return kind, what

    def result(self) -> tuple[str, Any]:
        """("result", what the body returned), or ("error", its text)."""
        while (said := self.said())[0] == "warning":
            self.warnings.append(said[1])
        return said


def _run(pipe: Connection, body: str, environment: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in PLACES:
            del os.environ[name]
    os.environ |= environment | {"BYTEPS_LIKE_SHARDS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: pipe.send(("warning", record.getMessage()))  # type: ignore[method-assign]
    logging.getLogger("byteps_like").addHandler(handler)
    try:
        pipe.send(("result", globals()[body]()))
    except RuntimeError as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))


@contextmanager
def started(body: Callable[[], Any], environments: list[dict[str, Any]]) -> Iterator[list[Rank]]:
    """One process for each environment; they meet at a port of their own."""
    with closing(HeldPorts()) as held:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.numbers[0])}
        ranks = [Rank(body, place | {name: str(value) for name, value in own.items()}) for own in environments]
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.join()


def launched(**variables: Callable[[int], Any]) -> list[dict[str, Any]]:
    """What a launcher leaves in the environments of two ranks."""
    return [{name: value(rank) for name, value in variables.items()} for rank in range(2)]


def own(rank: int) -> int:
    return rank


def two(_: int) -> int:
    return 2


LAUNCHERS = {
    "the script itself": launched(RANK=own, WORLD_SIZE=two),
    "DeepSpeed": launched(
        RANK=own, LOCAL_RANK=own, WORLD_SIZE=two, LOCAL_SIZE=two, CROSS_RANK=lambda _: 0, CROSS_SIZE=lambda _: 1
    ),
    "Lightning": launched(NODE_RANK=lambda _: 0, LOCAL_RANK=own, WORLD_SIZE=two),
    "Accelerate": launched(RANK=own, LOCAL_RANK=own, WORLD_SIZE=two, ACCELERATE_MIXED_PRECISION=lambda _: "no"),
    "srun": launched(
        SLURM_PROCID=own, SLURM_LOCALID=own, SLURM_NTASKS=two, SLURM_STEP_NUM_TASKS=two, SLURM_NODEID=lambda _: 0
    ),
    "mpirun of Open MPI": launched(
        OMPI_COMM_WORLD_RANK=own,
        OMPI_COMM_WORLD_SIZE=two,
        OMPI_COMM_WORLD_LOCAL_RANK=own,
        OMPI_COMM_WORLD_LOCAL_SIZE=two,
        PMIX_RANK=own,
    ),
    "mpirun of MPICH": launched(PMI_RANK=own, PMI_SIZE=two, MPI_LOCALRANKID=own, MPI_LOCALNRANKS=two),
    "mpirun of MVAPICH": launched(MV2_COMM_WORLD_RANK=own, MV2_COMM_WORLD_SIZE=two, MV2_COMM_WORLD_LOCAL_RANK=own),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_every_launcher_meet_at_the_master_s_address(launcher: str) -> None:
    with started(meet, LAUNCHERS[launcher]) as ranks:
        assert [rank.result() for rank in ranks] == [("result", [(own, 2, own, 2, 3.0)] * 2) for own in range(2)]


@pytest.mark.parametrize("body", [meet_in_a_group, meet_before_a_group])
def test_torch_s_own_store_is_at_the_same_address(body: Callable[[], Any]) -> None:
    with started(body, LAUNCHERS["the script itself"]) as ranks:
        assert [rank.result() for rank in ranks] == [("result", [(own, 2, own, 2, 3.0)] * 2) for own in range(2)]


def _spawned(rank: int, method: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
    bps.init(shards=1)
    assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (rank, 2, rank, 2)
    assert bps.push_pull(torch.tensor([rank + 1.0]), average=False, name="rank").item() == 3.0
    bps.shutdown()
    dist.destroy_process_group()


@pytest.mark.parametrize("method", ["tcp", "file"])
def test_spawned_ranks_meet_at_the_store_of_their_group(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in PLACES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with closing(HeldPorts()) as held:
        url = f"tcp://127.0.0.1:{held.numbers[0]}" if method == "tcp" else f"file://{tmp_path}/store"
        mp.spawn(_spawned, (url,), nprocs=2)


@pytest.mark.parametrize("body", [meet, meet_in_a_group, meet_as_a_group])
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_rank_that_cannot_start_tells_the_others(body: Callable[[], Any], culprit: int) -> None:
    environments: list[dict[str, Any]] = [{"RANK": rank, "WORLD_SIZE": 3} for rank in range(3)]
    environments[culprit]["BYTEPS_LIKE_STALL_TIMOUT"] = 3  # an unknown name
    with started(body, environments) as ranks:
        for number, rank in enumerate(ranks):
            kind, text = rank.result()
            assert kind == "error" and "did you mean 'BYTEPS_LIKE_STALL_TIMEOUT'" in text
            assert text.startswith("ConfigError" if number == culprit else f"RefusedError: rank {culprit} (host ")


def _told(ranks: list[Rank], culprit: int, why: str) -> None:
    for number, rank in enumerate(ranks):
        kind, text = rank.result()
        assert kind == "error" and why in text
        assert text.startswith("ConfigError: " if number == culprit else f"RefusedError: worker {culprit} (host "), text


@pytest.mark.parametrize("culprit", [0, 2])
@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("BYTEPS_LIKE_STALL_TIMOUT", 3, "did you mean 'BYTEPS_LIKE_STALL_TIMEOUT'"),
        ("BYTEPS_LIKE_TRACE_STEPS", "9:1", "trace_steps"),  # found when it is about to join
    ],
)
def test_a_rank_that_cannot_start_is_named_by_the_scheduler(
    culprit: int, setting: str, value: object, why: str
) -> None:
    with job(3, 0) as cluster:
        known = {
            f"BYTEPS_LIKE_{name.upper()}": value for name, value in cluster.rank_settings(0).items() if name != "rank"
        }
        environments: list[dict[str, Any]] = [known | {"BYTEPS_LIKE_RANK": rank} for rank in range(3)]
        environments[culprit] |= {setting: value, "BYTEPS_LIKE_TRACE": "/tmp"}
        with started(meet, environments) as ranks:
            _told(ranks, culprit, why)


SCHEDULER = {"BYTEPS_LIKE_SCHEDULER": "127.0.0.1:1", "BYTEPS_LIKE_SECRET": "s" * 32}


@pytest.mark.parametrize("place", [SCHEDULER, {}], ids=["the scheduler", "rank 0"])
def test_what_is_not_there_is_mentioned_after_5_seconds(place: dict[str, str]) -> None:
    with started(meet, [{"RANK": 1, "WORLD_SIZE": 2, **place}]) as (rank,):
        kind, text = rank.said()
    assert kind == "warning" and "has not answered for 5 s" in text


def test_a_rank_that_is_missing_is_named_after_5_seconds() -> None:
    with started(meet, [{"RANK": rank, "WORLD_SIZE": 3} for rank in (0, 1)]) as ranks:
        kind, text = ranks[1].said()
    assert kind == "warning" and "rank 1 of 3 has waited 5 s for rank 2 at the store" in text
