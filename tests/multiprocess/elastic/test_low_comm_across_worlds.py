"""Training with few synchronizations goes on with an elastic job: what is common, and what is each worker's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob, ElasticWorker
from tests.multiprocess.elastic.test_draining import drain
from tests.multiprocess.real_world import Cluster, Processes

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "low_comm_training.py"
EVERY = 4


class Learner:
    """A worker's weights and momentum, as one vector each."""

    def __init__(self, own: int, like: Learner | None = None, weights: torch.Tensor | None = None) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(30, 4, dtype=torch.float64)
        gradients = [torch.randn_like(one) for one in model.parameters()]
        self.gradient = torch.cat([one.flatten() for one in gradients]) * (1 + own)
        first = torch.cat([one.detach().flatten() for one in model.parameters()])
        self.weights = torch.nn.Parameter(first if weights is None else weights.clone())
        self.inner = torch.optim.SGD([self.weights], lr=0.1, momentum=0.9)
        if like is not None:
            self.inner.load_state_dict(deepcopy(like.inner.state_dict()))

    def step(self) -> None:
        self.weights.grad = self.gradient.clone()
        self.inner.step()


def learners(steps: Sequence[Sequence[int]], first: int, *, fragments: int = 1, delay: int = 0) -> dict[int, Learner]:
    """Streaming DiLoCo by torch.optim, in one process. `steps`: who makes each. Who comes later begins with the common
    weights, and with the momentum of `first`."""
    every = {own: Learner(own) for own in steps[0]}
    total = every[steps[0][0]].weights.numel()
    parts = [slice(total * one // fragments, total * (one + 1) // fragments) for one in range(fragments)]
    common = every[steps[0][0]].weights.detach().clone()
    outer = [torch.optim.SGD([common[part].requires_grad_()], lr=0.7, momentum=0.9, nesterov=True) for part in parts]
    lands: dict[int, int] = {}
    for number, members in enumerate(steps, 1):
        for own in set(members) - every.keys():
            every[own] = Learner(own, every[first], common.detach())
        for own in members:
            every[own].step()
        for one, part in enumerate(parts):
            due = EVERY * (one + 1) // fragments
            if number >= due and (number - due) % EVERY == 0:
                (values,) = outer[one].param_groups[0]["params"]
                values.grad = torch.stack(
                    [values.detach() - every[own].weights.detach()[part] for own in members]
                ).mean(0)
                outer[one].step()
                lands[one] = number + delay
            if lands.get(one) == number:
                for own in members:
                    every[own].weights.data[part] = outer[one].param_groups[0]["params"][0].detach()
    return every


def check(ended: Sequence[int], workers: Sequence[ElasticWorker], sizes: Sequence[int], **terms: int) -> None:
    """All have the weights, each its own, of learners in one process."""
    made = [{event["step"] for event in worker.events("step")} for worker in workers]
    begun, last = (workers[ended[0]].events(kind)[-1]["step"] for kind in ("began", "end"))
    for own in set(range(len(workers))) - set(ended):
        made[own] = {step for step in made[own] if step <= begun}  # later ones were made again, without it
    members = [[own for own, steps in enumerate(made) if number in steps] for number in range(1, last + 1)]
    (first,) = [own for own in ended if workers[own].events("began")[-1]["rank"] == 0]
    expected = learners(members, first, **terms)
    for own in ended:
        (end,) = workers[own].events("end")
        assert (end["sizes"], end["step"], end["version"]) == (list(sizes), last, last // EVERY)
        assert end["weights"] == pytest.approx(expected[own].weights.tolist(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_joiner_and_a_death(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    terms = {"GOAL": "2 3 2", "TERMS": json.dumps({"every": EVERY}), "COMMIT": str(EVERY)}
    with (
        closing(Cluster(2, servers, elastic=True, max_workers=3)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        stay = [job.start(OWN="0", **terms), job.start(OWN="1", **terms)]
        job.wait(lambda: len(stay[0].events("step")) > 2, "some steps")
        victim = job.start(OWN="2", VICTIM="3", **terms)
        for worker in stay:
            job.ended(worker)
        assert victim.process.wait() == -9
        check([0, 1], [*stay, victim], [2, 3, 2])


@pytest.mark.parametrize("servers", [0, 1])
def test_a_worker_leaves_while_weights_are_under_way(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    """What those who stay have trained since the last contribution stays theirs."""
    terms = {"every": EVERY, "fragments": 2, "delay": 1}
    settings = {"GOAL": "3 2", "TERMS": json.dumps(terms), "COMMIT": "1"}
    with (
        Processes(3, servers, elastic=True) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(OWN=str(own), **settings) for own in range(3)]
        job.wait(lambda: len(workers[0].events("step")) > 9, "some steps")
        (leaver,) = [own for own, one in enumerate(workers) if one.events("began")[0]["rank"] == 1]
        assert drain(cluster, "worker", 1).returncode == 0
        stay = [own for own in range(3) if own != leaver]
        for own in stay:
            job.ended(workers[own])
        check(stay, workers, [3, 2], fragments=2, delay=1)


def test_a_joiner_without_servers(tmp_path: Path, warm_python: list[str]) -> None:
    terms = {"GOAL": "2 3", "TERMS": json.dumps({"every": EVERY}), "COMMIT": str(EVERY)}
    with (
        closing(Cluster(2, 0, elastic=True, max_workers=3)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(OWN="0", **terms), job.start(OWN="1", **terms)]
        job.wait(lambda: len(workers[0].events("step")) > 2, "some steps")
        workers.append(job.start(OWN="2", **terms))
        for worker in workers:
            job.ended(worker)
        check([0, 1, 2], workers, [2, 3])


def test_after_a_failure_all_go_on_from_a_cut(tmp_path: Path, warm_python: list[str]) -> None:
    """Without servers nobody is left who could finish a sum."""
    terms = {"GOAL": "3 2", "TERMS": json.dumps({"every": EVERY}), "COMMIT": str(EVERY), "VICTIM": "3"}
    terms["CUTS"] = str(tmp_path / "cuts")
    with (
        closing(Cluster(3, 0, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(OWN=str(own), **terms) for own in range(3)]
        job.wait(lambda: any(one.process.poll() == -9 for one in workers), "the death of one")
        stay = [own for own, one in enumerate(workers) if one.process.poll() is None]
        for own in stay:
            job.ended(workers[own])
        assert (
            0 < workers[stay[0]].events("began")[-1]["step"] < max(e["step"] for e in workers[stay[0]].events("step"))
        )
        check(stay, workers, [3, 2])
