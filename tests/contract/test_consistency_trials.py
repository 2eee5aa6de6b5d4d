"""Several consistencies are tried while training runs, and the fastest stays: over native workers and servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch
from mixed_job import MixedJob, native_worker
from on_runtimes import by_servers

import byteps_like.torch as bps
from byteps_like.errors import ConfigError, InvalidArgumentError
from byteps_like.torch.job import runtime
from byteps_like.torch.stored.trials import PACE

RANKS = 3
TOGETHER, APART = "bsp", "asp"
TRIAL = PACE.discard + PACE.measure


@pytest.fixture(scope="module")
def job() -> Iterator[MixedJob]:
    made = MixedJob(makers=[native_worker] * RANKS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def runtimes(job: MixedJob) -> list[runtime.Runtime]:
    return [runtime.Runtime(worker) for worker in job.workers]


def made(consistency: Any, tune: Any = "on") -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, bps.DistributedOptimizer(plain, model.named_parameters(), consistency=consistency, tune=tune)


def train(model: torch.nn.Module, optimizer: Any, steps: int, seconds: float = 0.0) -> None:
    for _ in range(steps):
        time.sleep(seconds)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("tried", [(TOGETHER, APART), (APART, TOGETHER)])
def test_the_fastest_stays(runtimes, tried):
    """One rank takes a hundred times as long as the others: together, none makes more steps than that one."""

    def body(rank: int) -> tuple[str, torch.Tensor]:
        model, optimizer = made(tried)
        train(model, optimizer, 1 + len(tried) * TRIAL, 0.03 if rank == 0 else 0.0003)
        chosen = optimizer.consistency
        optimizer.finish()
        return chosen, torch.cat([one.detach().flatten() for one in model.parameters()])

    found = by_servers(runtimes, body)
    assert [chosen for chosen, _ in found] == [APART] * RANKS
    assert all(torch.equal(found[0][1], weights) for _, weights in found)


@pytest.mark.parametrize("steps", [0, 1, TRIAL // 2, TRIAL + 5])
def test_whoever_has_no_more_batches_ends_the_trials(runtimes, steps):
    def body(rank: int) -> str:
        model, optimizer = made(["k_of_n:k=2,late=next", TOGETHER, APART])
        train(model, optimizer, steps if rank == 1 else 3 * TRIAL)
        optimizer.finish()
        return optimizer.consistency

    assert len(set(by_servers(runtimes, body))) == 1


def test_what_was_saved_is_used_after_the_first_step(runtimes, tmp_path):
    path = tmp_path / "deep" / "choice.json"

    def search(rank: int) -> None:
        model, optimizer = made([TOGETHER, APART], path)
        train(model, optimizer, 1 + 2 * TRIAL, 0.05 if rank == 0 else 0.0)
        optimizer.finish()

    def use(_: int) -> tuple[str, str]:
        model, optimizer = made([TOGETHER, APART], path)
        before = optimizer.consistency
        train(model, optimizer, 1)
        after = optimizer.consistency
        optimizer.finish()
        return before, after

    by_servers(runtimes, search)
    saved = json.loads(path.read_text())
    assert saved["consistency"] == APART and [one["consistency"] for one in saved["trials"]] == [TOGETHER, APART]
    assert by_servers(runtimes, use) == [(TOGETHER, APART)] * RANKS


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1, "consistency": "ssp:s=3"}'])
def test_a_broken_file_is_heard_of_everywhere(runtimes, tmp_path, text):
    path = tmp_path / "choice.json"
    path.write_text(text)

    def body(rank: int) -> tuple[str, str]:
        model, optimizer = made([TOGETHER, APART], path)
        with pytest.raises(ConfigError) as caught:
            train(model, optimizer, 1)
        train(model, optimizer, 1)  # it goes on by the one that is in force
        optimizer.finish()
        return str(caught.value), optimizer.consistency

    found = by_servers(runtimes, body)
    assert str(path) in found[0][0] and all("rank 0" in words for words, _ in found[1:])


def test_who_chooses_meanwhile_has_the_last_word(runtimes):
    def body(_: int) -> str:
        model, optimizer = made([TOGETHER, APART])
        train(model, optimizer, TRIAL // 2)
        optimizer.change_consistency("ssp:s=2")
        train(model, optimizer, 2 * TRIAL)
        chosen = optimizer.consistency
        optimizer.finish()
        return chosen

    assert by_servers(runtimes, body) == ["ssp:s=2"] * RANKS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"consistency": [TOGETHER, APART], "tune": None}, "are several, which are tried with tune='on'"),
        ({"consistency": [TOGETHER, APART], "tune": "off"}, "are several, which are tried with tune='on'"),
        ({"consistency": APART, "tune": "on"}, "'asp' is one: pass a list"),
        ({"consistency": [APART]}, "give two or more"),
        ({"consistency": []}, "give two or more"),
        ({"consistency": [APART, APART]}, "each once"),
        ({"consistency": [APART, "k_of_n:k=9"]}, "k"),
    ],
)
def test_wrong_terms(runtimes, given, words):
    with runtime.using(runtimes[0]), pytest.raises(InvalidArgumentError, match=words):
        made(**given)
