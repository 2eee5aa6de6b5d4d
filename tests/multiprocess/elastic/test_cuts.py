"""Cuts of real jobs: of 4 workers and 2 servers for 3 and 1, and the other way round, with every byte in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.multiprocess.real_world import Pool, job

SAMPLES, BATCH = 103, 4
CODED = {"min_compress_bytes": 1024, "partition_bytes": 65_536}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(5)
    yield made
    made.close()


class Training:
    """A model with a codec that leaves most out, values that servers update, samples that are dealt out."""

    def __init__(self, bps: Any, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 3000), torch.nn.Tanh(), torch.nn.Linear(3000, 3))
        self.optimizer = bps.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters(), lr=0.01),
            named_parameters=self.model.named_parameters(),
            compression=bps.Compress("topk:ratio=0.01", feedback=True),
        )
        self.store = bps.Store("kept", {"w": np.full((300, 101), seed, np.float32)}, update="adam:lr=0.01")
        self.sampler = bps.elastic.ElasticSampler(range(SAMPLES), seed=3)
        self.state = bps.elastic.TorchState(
            self.model, self.optimizer, sampler=self.sampler, store=self.store, step=0, note={"sizes": (1, [2.5])}
        )
        self.bps, self.seen = bps, []

    def step(self) -> None:
        """One, with other gradients on each rank."""
        import torch

        batch = self.sampler.get_indices(self.state.step - self.begin, BATCH)
        self.seen += batch
        generator = torch.Generator().manual_seed(1000 * self.state.step + self.bps.rank())
        self.optimizer.zero_grad()
        self.model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        self.optimizer.step()
        pushed = torch.randn(300, 101, generator=generator).numpy()
        self.store.push_pull("w", pushed, np.empty((300, 101), np.float32)).wait()
        self.sampler.record_batch(self.state.step - self.begin, BATCH)
        self.state.step += 1

    begin = 0

    def held(self) -> dict[str, Any]:
        """All of it, as arrays and plain values."""
        kept = self.store.state_dict()["tensors"]["w"]
        state = self.optimizer.state_dict()
        memory = state.pop("byteps_like")["parameters"]
        moments = [np.concatenate([entry["state"].reshape(2, -1)[half] for entry in kept["pieces"]]) for half in (0, 1)]
        return {
            "model": {name: value.numpy().copy() for name, value in self.model.state_dict().items()},
            "optimizer": {
                f"{number}.{key}": value.numpy().copy()
                for number, one in state["state"].items()
                for key, value in one.items()
            },
            "groups": state["param_groups"],
            "kept": {"value": kept["value"], "moments": moments},
            "residuals": {
                name: kinds["residual"].numpy().astype(np.float64) for name, kinds in memory.items() if kinds
            },
            "seen": self.seen,
            "step": self.state.step,
            "note": self.state.note,
        }


def save(bps: Any, rank: int, size: int, directory: str, steps: int) -> dict[str, Any]:
    training = Training(bps, seed=1)
    for _ in range(steps):
        training.step()
    bps.elastic.save(directory, training.state)
    held = training.held()
    return held | {"random": _drawn()}


def resume(bps: Any, rank: int, size: int, directory: str) -> dict[str, Any]:
    training = Training(bps, seed=2 + rank)
    assert bps.elastic.load(directory, training.state) == bps.elastic.latest(directory)
    held, drawn = training.held(), _drawn()
    training.begin, rest = training.state.step, len(training.sampler)
    for _ in range(-(-rest // BATCH)):
        training.step()
    return held | {"random": drawn, "rest": training.seen}


def _drawn() -> list[float]:
    import random

    import torch

    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize(("before", "after"), [((4, 2), (3, 1)), ((2, 1), (5, 2))], ids=["fewer", "more"])
def test_a_job_of_other_numbers_goes_on(
    pool: Pool, tmp_path: Path, before: tuple[int, int], after: tuple[int, int], elastic: bool
) -> None:
    with job(*before, **CODED, elastic=elastic) as cluster:
        saved = pool.run(cluster, save, str(tmp_path), 3)
    with job(*after, **CODED, elastic=elastic) as cluster:
        loaded = pool.run(cluster, resume, str(tmp_path))
    for one in loaded:
        for part in ("model", "optimizer", "kept", "groups", "note", "step"):
            np.testing.assert_equal(one[part], saved[0][part])
    _check_residuals([one["residuals"] for one in saved], [one["residuals"] for one in loaded])
    for was, now in zip(saved, loaded, strict=False):
        assert was["random"] == now["random"]
    done = [sample for one in saved for sample in one["seen"]]
    rest = [sample for one in loaded for sample in one["rest"]]
    assert len(set(done)) == len(done) == 3 * BATCH * before[0]
    assert set(done) | set(rest) == set(range(SAMPLES)) and not set(done) & set(rest)
    assert len(rest) - len(set(rest)) < after[0], "more than what fills up the end was repeated"


def _check_residuals(saved: list[dict[str, Any]], loaded: list[dict[str, Any]]) -> None:
    """Each rank goes on from its own; what those left out that there are no longer is rank 0's."""
    assert saved[0].keys() >= {"0.weight"} and np.abs(saved[0]["0.weight"]).max() > 0
    for name in saved[0]:
        missing = sum(one[name] for one in saved[len(loaded) :])
        expected = [one[name] for one in saved] + [np.zeros_like(saved[0][name])] * len(loaded)
        for rank, one in enumerate(loaded):
            wanted = expected[rank] + (missing if rank == 0 else 0)
            np.testing.assert_allclose(one[name], wanted, rtol=1e-6, atol=1e-9)


class ServedTraining:
    """Weights that servers keep, with a codec, and a LowComm; each has its checkpoint in the cut."""

    def __init__(self, bps: Any, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.model, self.local = torch.nn.Linear(8, 3000), torch.nn.Linear(50, 50)
        self.optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9),
            named_parameters=self.model.named_parameters(),
            consistency="ssp:s=1",
            codec="topk:ratio=0.01",
            feedback=1.0,
        )
        inner = torch.optim.SGD(self.local.parameters(), lr=0.1)
        self.low = bps.LowComm(self.local, inner, every=2)
        self.state = bps.elastic.TorchState(optimizer=self.optimizer, low=self.low, step=0)
        self.inner, self.bps = inner, bps

    def step(self) -> None:
        import torch

        generator = torch.Generator().manual_seed(1000 * self.state.step + self.bps.rank())
        self.optimizer.zero_grad()
        self.model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        self.optimizer.step()
        with self.low:
            self.inner.zero_grad()
            self.local(torch.randn(4, 50, generator=generator)).square().mean().backward()
            self.inner.step()
        self.state.step += 1

    def held(self) -> dict[str, Any]:
        return {
            "weights": {name: value.numpy().copy() for name, value in self.model.state_dict().items()},
            "low": self.low.state_dict()["common"]["tensors"],
            "steps": (self.low.steps, self.state.step),
            "residuals": {name: np.asarray(one, np.float64).copy() for name, one in self.optimizer.residuals().items()},
        }


def save_served(bps: Any, rank: int, size: int, directory: str) -> dict[str, Any]:
    training = ServedTraining(bps, seed=1)
    for _ in range(3):
        training.step()
    bps.elastic.save(directory, training.state)
    training.optimizer.pull()
    return training.held()


def resume_served(bps: Any, rank: int, size: int, directory: str) -> dict[str, Any]:
    training = ServedTraining(bps, seed=2)
    assert bps.elastic.load(directory, training.state) is not None
    held = training.held()
    training.step()
    return held


def test_servers_keep_what_they_kept(pool: Pool, tmp_path: Path) -> None:
    with job(3, 2, **CODED) as cluster:
        saved = pool.run(cluster, save_served, str(tmp_path), together=True)
    with job(2, 1, **CODED) as cluster:
        loaded = pool.run(cluster, resume_served, str(tmp_path), together=True)
    for was, now in zip(saved, loaded, strict=False):
        np.testing.assert_equal(now["weights"], was["weights"])
        assert now["steps"] == was["steps"] == (3, 3)
        for name, one in was["low"].items():
            np.testing.assert_array_equal(now["low"][name]["value"], one["value"])
    missing, name = saved[2]["residuals"], "weight"
    assert np.abs(missing[name]).max() > 0
    np.testing.assert_allclose(loaded[0]["residuals"][name], saved[0]["residuals"][name] + missing[name], rtol=1e-6)
    np.testing.assert_array_equal(loaded[1]["residuals"][name], saved[1]["residuals"][name])
