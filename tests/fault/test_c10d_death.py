"""A rank is killed, and torch waits in every way it has: DDP's backward, functional collectives, futures, callbacks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from tests.multiprocess.c10d.world import GroupPool

RANKS, VICTIM = 3, 2
ELEMENTS = 4 << 20
ENOUGH = 1000  # calls: one of them fails
Seen = tuple[str, str, float]
"""Class and text of what was raised; seconds from the victim's death until then."""


def _die(group: Any) -> None:
    group.get_group_store().set("killed", repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def _until_it_fails(group: Any, call: Callable[[], Any]) -> Seen:
    try:
        for _ in range(ENOUGH):
            call()
    except Exception as error:  # noqa: BLE001 - the test shows which it was
        failed = time.monotonic()
        return type(error).__name__, str(error), failed - float(group.get_group_store().get("killed"))
    return "", "nothing was raised", 0.0


def in_backward(group: Any, rank: int, size: int) -> Seen:
    """The victim dies when the first layer's gradient comes: buckets of the later ones are on their way."""
    torch.manual_seed(1)
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    model = DistributedDataParallel(layers, bucket_cap_mb=1)
    gradients = []

    def hook(gradient: torch.Tensor) -> None:
        gradients.append(1)
        if rank == VICTIM and len(gradients) == 3:
            _die(group)

    layers[0].weight.register_hook(hook)
    seen = _until_it_fails(group, lambda: model(torch.randn(8, 512)).sum().backward())
    assert len(gradients) >= 3, "it failed before the victim died"
    return seen


def _then(tensor: torch.Tensor) -> None:
    """The callback must be called, and see the error."""
    called = threading.Event()

    def callback(future: Any) -> Any:
        called.set()
        return future.value()

    try:
        dist.all_reduce(tensor, async_op=True).get_future().then(callback).wait()
    finally:
        assert called.wait(5)


def _done_callback(tensor: torch.Tensor) -> None:
    told: list[Any] = []
    done = threading.Event()

    def callback(future: Any) -> None:
        told.append(future)
        done.set()

    dist.all_reduce(tensor, async_op=True).get_future().add_done_callback(callback)
    assert done.wait(5)
    told[0].value()


def _polled(tensor: torch.Tensor) -> None:
    """Nobody waits; whoever asks is told that it has ended, and how."""
    work = dist.all_reduce(tensor, async_op=True)
    limit = time.monotonic() + 5
    while not work.is_completed() and time.monotonic() < limit:
        time.sleep(0.0005)
    assert work.is_completed()
    if not work.is_success():
        raise work.exception()


WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "call": dist.all_reduce,
    "wait": lambda tensor: dist.all_reduce(tensor, async_op=True).wait(),
    "polled": _polled,
    "future": lambda tensor: dist.all_reduce(tensor, async_op=True).get_future().wait(),
    "then": _then,
    "done_callback": _done_callback,
    "wait_all": lambda tensor: torch.futures.wait_all([dist.all_reduce(tensor, async_op=True).get_future()]),
    "functional": lambda tensor: functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD)),
    "functional_used": lambda tensor: functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1,
}


def calls(group: Any, rank: int, size: int, way: str) -> Seen:
    """The victim dies when it has begun a call."""
    tensor = torch.ones(ELEMENTS)
    WAYS[way](tensor)
    dist.barrier()
    if rank == VICTIM:
        dist.all_reduce(tensor, async_op=True)
        _die(group)
    return _until_it_fails(group, lambda: WAYS[way](tensor))


def _survivors(body: Callable[..., Seen], *args: Any, transport: str) -> list[Seen]:
    processes = GroupPool(RANKS)
    try:
        answers = processes.answers(RANKS, body, *args, environment={"BYTEPS_LIKE_TRANSPORT": transport})
    finally:
        processes.close()
    assert answers.pop(VICTIM) == (False, "the process died")
    assert all(ok for ok, _ in answers), answers
    return [seen for _, seen in answers]


def _check(seen: list[Seen]) -> None:
    for kind, text, seconds in seen:
        assert kind == "PeerLostError" and f"rank {VICTIM}" in text, f"{kind}: {text}"
        assert 0 <= seconds < 2, f"{seconds:.1f} s: {text}"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_a_call_is_told_within_two_seconds(way: str, transport: str) -> None:
    _check(_survivors(calls, way, transport=transport))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_backward_of_ddp_is_told_within_two_seconds(transport: str) -> None:
    _check(_survivors(in_backward, transport=transport))
