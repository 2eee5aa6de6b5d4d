"""One rank of bench/consistency/training.py: trains in all ways, for each seed; rank 0 leaves accuracies as JSON.

Any step is slow now and then, so that contributions do get old. The model is one parameter: a version of it is one of
all of it, and ranks that stop at the same version leave nobody behind.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import byteps_like.torch as bps
from bench.consistency.scenarios import S2
from bench.consistency.training_plan import BATCH, TRAININGS, Plan, Training
from examples._digits import data

RATE = 0.1  # of bsp, whose steps are means of all ranks' gradients
COMPUTE = 1e-3  # seconds
SIZES = (64, 64, 10)


class Network(torch.nn.Module):
    """Two layers, all of whose weights are one vector."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(*sizes) for sizes in itertools.pairwise(SIZES)]
        self._shapes = [parameter.shape for layer in layers for parameter in layer.parameters()]
        flat = [parameter.detach().flatten() for layer in layers for parameter in layer.parameters()]
        self.weights = torch.nn.Parameter(torch.cat(flat))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        pieces = torch.split(self.weights, [shape.numel() for shape in self._shapes])
        first, bias, second, other = (piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True))
        return functional.linear(functional.relu(functional.linear(images, first, bias)), second, other)


class Digits:
    """This rank's share of the training images, and all test images."""

    def __init__(self, seed: int) -> None:
        images, test_images, labels, test_labels = data()
        own = slice(bps.rank(), None, bps.size())
        self._images, self._labels, self._test = images[own], labels[own], (test_images, test_labels)
        self._draw = torch.Generator().manual_seed(1000 * seed + bps.rank())

    def loss(self, network: Network) -> torch.Tensor:
        """Of a batch."""
        rows = torch.randint(len(self._images), (BATCH,), generator=self._draw)
        return functional.cross_entropy(network(self._images[rows]), self._labels[rows])

    def accuracy(self, network: Network) -> float:
        """On the test images."""
        images, labels = self._test
        with torch.no_grad():
            return float((network(images).argmax(1) == labels).float().mean())


def train(step: Callable[[], Any], more: Callable[[int], bool], seed: int) -> None:
    """Steps as long as there are `more` to come after so many."""
    made = 0
    while more(made):
        time.sleep(COMPUTE * S2.factor(seed, bps.rank(), made))
        step()
        made += 1


def accuracy(training: Training, seed: int, samples: int) -> float:
    """On the test images."""
    network, digits = Network(seed), Digits(seed)
    rate = RATE * training.together / bps.size()
    plain = torch.optim.SGD(network.parameters(), lr=rate)
    run = _by_low_comm if training.low_comm else _by_optimizer
    return run(training, network, digits, plain, (seed, samples))


def _step(network: Network, digits: Digits, optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(digits.loss(network))
        optimizer.step()

    return step


def _by_optimizer(
    training: Training, network: Network, digits: Digits, plain: torch.optim.Optimizer, how: tuple[int, int]
) -> float:
    seed, samples = how
    optimizer = bps.DistributedOptimizer(plain, network.named_parameters(), **training.terms)
    steps, versions = samples // (BATCH * bps.size()), samples // (BATCH * training.together)
    more = (lambda _: optimizer.version < versions) if training.by_versions else (lambda made: made < steps)
    bps.barrier()
    train(_step(network, digits, optimizer), more, seed)
    bps.barrier()
    if training.terms:
        optimizer.pull()
    optimizer.close()
    return digits.accuracy(network)


def _by_low_comm(
    training: Training, network: Network, digits: Digits, plain: torch.optim.Optimizer, how: tuple[int, int]
) -> float:
    seed, samples = how
    steps = samples // (BATCH * bps.size())
    outer = {"outer": bps.AveragedWeights()} if "outer" in training.terms else {}
    with bps.LowComm(network, plain, **{**training.terms, **outer}) as low:
        plain_step = _step(network, digits, plain)

        def step() -> None:
            low.count(BATCH)
            plain_step()

        bps.barrier()
        train(step, lambda made: made < steps, seed)
    bps.barrier()
    return digits.accuracy(network)


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(1)
    bps.init()
    found = {
        name: [accuracy(training, seed, plan.samples) for seed in range(plan.seeds)]
        for name, training in TRAININGS.items()
    }
    if bps.rank() == 0:
        (Path(plan.folder) / "accuracies.json").write_text(json.dumps(found))
    bps.shutdown()


if __name__ == "__main__":
    main()
