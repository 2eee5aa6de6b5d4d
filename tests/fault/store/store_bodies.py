"""What ranks do in the tests of stores whose ranks die: `body(bps, rank, size, ...)`."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from byteps_like.store.future import Future
from tests.fault.bodies import Seen, watch

_PACE = 0.005
_LOOKS = 40
"""Steps by which everybody is under way, and which the victim doesn't live to see much more of."""


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's: images of 64 numbers from 0 to 1, and labels."""
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def _die_soon(seconds: float = 0.1) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def count_on(bps: Any, rank: int, size: int, policies: list[str], folder: str) -> list[dict[str, Any]]:
    """Pushes to a store of each policy, where element r counts the contributions of rank r. Rank 1 dies meanwhile.
    Of each store what this rank knows of its own contributions, and the values in the end."""
    stores = [
        bps.Store(f"counts{number}", {"w": np.zeros(size, np.int64)}, consistency=policy, combine="sum",
                  on_loss="finish")
        for number, policy in enumerate(policies)
    ]  # fmt: skip
    own = np.eye(size, dtype=np.int64)[rank]
    pushed: list[list[Future]] = [[] for _ in stores]
    out = np.zeros(size, np.int64)
    steps = itertools.count() if rank == 1 else range(3 * _LOOKS)
    for step in steps:
        if step == _LOOKS and rank == 1:
            _die_soon()
        for store, futures in zip(stores, pushed, strict=True):
            futures.append(store.push("w", own))
            store.pull("w", out).wait(20)
        time.sleep(_PACE)
    for store in stores:
        store.finish()
    found = []
    for number, (store, futures) in enumerate(zip(stores, pushed, strict=True)):
        for future in futures:
            future.wait(20)
        store.pull("w", out).wait(20)
        version = store.checkpoint(Path(folder) / str(number))
        found.append(
            {
                "values": out.tolist(),
                "counted": sum(future.counted for future in futures),
                "least": min(len(future.contributors) for future in futures if future.counted),
                "version": version,
            }
        )
    return found


def raise_or_finish(bps: Any, rank: int, size: int, kinds: list[str]) -> Seen:
    """Pushes to a store of each `on_loss` until rank 1 is dead, and if one raises, that is heard of; else two seconds
    have passed."""
    stores = [
        bps.Store(f"kept{number}", {"w": np.zeros(8, np.float32)}, consistency="asp", on_loss=kind)
        for number, kind in enumerate(kinds)
    ]
    ones = np.ones(8, np.float32)
    if rank == 1:
        _die_soon(0.5)

    def until() -> None:
        end = time.monotonic() + (60 if rank == 1 or "raise" in kinds else 2.5)
        while time.monotonic() < end:
            for store in stores:
                store.push("w", ones).wait(20)

    return watch(until)


def then_sum(bps: Any, rank: int, size: int, how: str) -> list[Seen]:
    """Something that needs rank 1, twice: while it dies, and once that is known."""
    store = bps.Store("kept", {"w": np.zeros(8, np.float32)}, consistency="asp", on_loss="finish")
    call = {
        "push_pull": lambda: bps.push_pull(torch.ones(8), name="sum"),
        "allgather": lambda: bps.allgather(torch.ones(8), name="all"),
        "barrier": bps.barrier,
    }[how]
    call()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    store.push("w", np.ones(8, np.float32)).wait(20)
    return [watch(call), watch(call)]


def train(bps: Any, rank: int, size: int, consistency: str, steps: int) -> dict[str, Any]:
    """The digits, with weights on servers. Rank 1 dies when a third is done."""
    images, labels = digits()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), consistency=consistency, on_loss="finish")
    for step in range(steps):
        if rank == 1 and step == steps // 3:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = torch.randint(len(labels), (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    optimizer.finish()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"accuracy": right, "weights": flat.double().sum().item()}


def train_apart(bps: Any, rank: int, size: int, codec: str, steps: int) -> dict[str, Any]:
    """The digits by Decoupled DiLoCo. Rank 1 dies when a third is done, with one contribution under way."""
    images, labels = digits()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = bps.LowComm(
        model, inner, every=10, fragments=2, delay=2, quorum=0.75, grace="auto", weight="tokens**2/steps",
        codec=codec, on_loss="finish",
    )  # fmt: skip
    with learner:
        for step in range(steps):
            if rank == 1 and step == steps // 3:
                os.kill(os.getpid(), signal.SIGKILL)
            batch = torch.randint(len(labels), (64,))
            learner.count(len(batch))
            inner.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            inner.step()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {
        "accuracy": right,
        "weights": flat.double().sum().item(),
        "version": learner.version,
        "contributors": learner.contributors,
    }
