"""Process groups whose ranks come and go, as torch's tests of fault tolerance want them; what is refused, and who is
named. Each process of a job is a thread here; there are real ones in tests/multiprocess/elastic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed import HashStore

import byteps_like.torch as bps
from byteps_like.errors import (
    CorruptError,
    DeadlineError,
    InvalidArgumentError,
    NotInitializedError,
    PeerLostError,
    ShutdownError,
)
from tests.contract.mixed_job import in_threads

SIZE = 3
TIMEOUT = timedelta(seconds=20)


class Process:
    """One of a job, as its program sees it."""

    def __init__(self, number: int, store: Any, turn: threading.Barrier, board: dict[int, str]) -> None:
        self.number, self._turn, self._board = number, turn, board
        self.group: Any = bps.create_process_group(store, number, SIZE, timeout=TIMEOUT, enable_reconfigure=True)

    def together(self) -> None:
        self._turn.wait()

    def handles(self) -> list[str]:
        """Those of all processes, by their numbers."""
        self._board[self.number] = self.group.get_reconfigure_handle()
        self.together()
        found = [self._board[number] for number in range(SIZE)]
        self.together()
        return found

    def reconfigure(self, uuid: int, handles: Collection[str], timeout: timedelta | None = TIMEOUT) -> None:
        self.group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout)).wait()

    def place(self) -> tuple[int, int]:
        return self.group.rank(), self.group.size()

    def sum(self) -> float:
        """Of what all ranks give: their rank + 1."""
        tensor = torch.full((4,), self.group.rank() + 1.0)
        self.group.allreduce([tensor]).wait()
        assert (tensor == tensor[0]).all()
        return float(tensor[0])


def everywhere(body: Callable[[Process], Any]) -> list[Any]:
    store, turn, board = HashStore(), threading.Barrier(SIZE, timeout=60), dict[int, str]()

    def run(number: int) -> Any:
        process = Process(number, store, turn, board)
        try:
            return body(process)
        finally:
            process.group.shutdown()

    return in_threads([lambda number=number: run(number) for number in range(SIZE)])


def test_all_processes_form_a_group_and_send_and_receive():
    def body(process: Process) -> None:
        assert process.group.supports_reconfigure
        process.reconfigure(1, process.handles())
        assert process.place() == (process.number, SIZE) and process.sum() == 6
        rank = process.group.rank()
        sent, received = torch.full((4,), rank + 1.0), torch.zeros(4)
        works = [process.group.send([sent], (rank + 1) % SIZE, 0), process.group.recv([received], (rank - 1) % SIZE, 0)]
        for work in works:
            work.wait()
        assert (received == (rank - 1) % SIZE + 1).all()

    everywhere(body)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_the_others_go_on_without_one_and_then_with_it_again(gone):
    def body(process: Process) -> None:
        process.reconfigure(1, process.handles())
        handles = process.handles()
        if process.number != gone:
            process.reconfigure(2, [handle for number, handle in enumerate(handles) if number != gone])
            assert process.place() == (process.number - (process.number > gone), SIZE - 1) and process.sum() == 3
        process.together()
        process.reconfigure(3, process.handles())
        assert process.place() == (process.number, SIZE) and process.sum() == 6

    everywhere(body)


def test_groups_split_merge_and_come_late():
    def body(process: Process) -> None:
        alone = process.number == 0
        handles = process.handles()
        process.reconfigure(10 + alone, handles[:1] if alone else handles[1:])
        assert process.place() == ((0, 1) if alone else (process.number - 1, 2)) and process.sum() == (
            1 if alone else 3
        )
        process.reconfigure(12, process.handles())
        assert process.sum() == 6
        process.reconfigure(20 + process.number, [process.group.get_reconfigure_handle()])
        assert process.place() == (0, 1) and process.sum() == 1
        if not alone:
            process.reconfigure(30, process.handles()[1:])
        else:
            process.handles()  # which it does not use
        process.reconfigure(31, process.handles())
        assert process.place() == (process.number, SIZE) and process.sum() == 6

    everywhere(body)


def test_ranks_of_a_set_keep_their_order():
    def body(process: Process) -> None:
        process.reconfigure(1, list(reversed(process.handles())))
        before = process.group.rank()
        assert before == SIZE - 1 - process.number
        process.reconfigure(2, set(process.handles()))
        assert process.group.rank() == before and process.sum() == 6

    everywhere(body)


def test_after_an_abort():
    def body(process: Process) -> None:
        process.reconfigure(1, process.handles())
        if process.number == 0:
            work = process.group.allreduce([torch.ones(4)])
        process.together()
        process.group.abort()
        if process.number == 0:
            with pytest.raises((ShutdownError, PeerLostError)):
                work.wait()
        assert process.group.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
        with pytest.raises(ShutdownError):
            process.sum()
        process.reconfigure(2, process.handles())
        assert process.sum() == 6

    everywhere(body)


def test_what_is_in_flight_ends_with_the_old_ranks():
    def body(process: Process) -> None:
        process.reconfigure(1, process.handles())
        handles = process.handles()
        if process.number == 0:
            work = process.group.allreduce([torch.ones(4)])
            part = process.group.splitGroup([0, 1])
        process.reconfigure(2, handles)
        if process.number == 0:
            for call in (work.wait, lambda: part.allreduce([torch.ones(4)]).wait()):
                with pytest.raises((ShutdownError, PeerLostError), match=r"shut down|reconfigured"):
                    call()
        assert process.sum() == 6

    everywhere(body)


def test_who_does_not_come_is_named_and_the_others_try_again():
    def body(process: Process) -> None:
        handles = process.handles()
        if process.number != 1:
            with pytest.raises(DeadlineError, match="rank 1"):
                process.reconfigure(1, handles, timedelta(seconds=1))
        process.together()
        process.reconfigure(2, process.handles())
        assert process.sum() == 6

    everywhere(body)


def test_what_is_refused():
    def body(process: Process) -> None:
        with pytest.raises(NotInitializedError, match="call reconfigure"):
            process.sum()
        own, others = process.group.get_reconfigure_handle(), process.handles()[process.number - 1]
        for uuid, handles, error, words in (
            (1, [others], InvalidArgumentError, "this process's handle is not among those"),
            (1, [own, own], InvalidArgumentError, "given twice"),
            (1, [own, "nonsense"], CorruptError, "'nonsense' is no handle"),
            (1, [own, '{"rank": 1, "name": "a", "peer": {"urls": 3}}'], CorruptError, "rank 1"),
        ):
            with pytest.raises(error, match=words):
                process.reconfigure(uuid, handles)
        assert process.group.get_reconfigure_handle() == own
        process.reconfigure(1, [own])
        with pytest.raises(InvalidArgumentError, match="has been used"):
            process.reconfigure(2, [own])
        with pytest.raises(RuntimeError, match="uuid 1 was already used"):
            process.reconfigure(1, [process.group.get_reconfigure_handle()])
        assert process.sum() == 1

    everywhere(body)


def test_groups_that_do_not_change_say_so():
    group = bps.create_process_group(HashStore(), 0, 1, timeout=TIMEOUT)
    assert not group.supports_reconfigure
    group.shutdown()


def test_processes_with_other_secrets_do_not_meet(monkeypatch):
    """Each has its own store, so each its own secret."""

    turn, board = threading.Barrier(SIZE, timeout=60), dict[int, str]()

    def run(number: int) -> None:
        process = Process(number, HashStore(), turn, board)
        with pytest.raises((RuntimeError, dist.DistError)):
            process.reconfigure(1, process.handles(), timedelta(seconds=2))
        process.together()
        process.group.shutdown()

    in_threads([lambda number=number: run(number) for number in range(SIZE)])
