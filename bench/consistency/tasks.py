"""What bench/consistency/training.py trains: digits, and the GPT of the examples. A model is one parameter, so that a
version of it is one of all of it, and ranks that stop at the same version leave nobody behind."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from typing_extensions import override

sys.path.append(str(Path(__file__).parents[2] / "examples"))  # as scripts there find one another

from _digits import data
from _gpt import GPT
from gpt import text

WINDOW, WIDTH = 32, 48  # of the GPT: characters, and of one layer
HELD_OUT = 512  # windows


class Flat(torch.nn.Module):
    """A model all of whose weights are one vector."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._parts = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.weights = torch.nn.Parameter(torch.cat([one.detach().flatten() for one in model.parameters()]))
        self._model = [model]  # in a list: not one of its parts, whose weights would be its own

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the model makes of them."""
        pieces = torch.split(self.weights, [shape.numel() for shape in self._parts.values()])
        own = {name: piece.view(shape) for (name, shape), piece in zip(self._parts.items(), pieces, strict=True)}
        made: torch.Tensor = torch.func.functional_call(self._model[0], own, (inputs,))
        return made


class Task(ABC):
    """A rank's share of something to learn."""

    batch: int
    """Of a step of a rank."""
    rate: float
    """Of bsp's SGD, whose steps are means of all ranks' gradients."""

    def __init__(self, rank: int, ranks: int, seed: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._draw = torch.Generator().manual_seed(1000 * seed + rank)

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """As it begins."""

    @abstractmethod
    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        """Of the next batch."""

    @abstractmethod
    def score(self, model: torch.nn.Module) -> float:
        """Of what no rank has trained on."""


class Digits(Task):
    """Test accuracy in percent, of two layers."""

    batch, rate = 32, 0.1

    def __init__(self, rank: int, ranks: int, seed: int) -> None:
        super().__init__(rank, ranks, seed)
        images, test_images, labels, test_labels = data()
        own = slice(rank, None, ranks)
        self._images, self._labels, self._test = images[own], labels[own], (test_images, test_labels)

    @override
    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    @override
    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        rows = torch.randint(len(self._images), (self.batch,), generator=self._draw)
        return functional.cross_entropy(model(self._images[rows]), self._labels[rows])

    @override
    def score(self, model: torch.nn.Module) -> float:
        images, labels = self._test
        return 100 * float((model(images).argmax(1) == labels).float().mean())


class Text(Task):
    """Held-out loss in nats per character, of a small GPT; the last tenth of the text is held out."""

    batch, rate = 8, 0.5

    def __init__(self, rank: int, ranks: int, seed: int) -> None:
        super().__init__(rank, ranks, seed)
        codes = text()
        self._train, self._test = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]

    @override
    def model(self) -> torch.nn.Module:
        return GPT(WINDOW, WIDTH, layers=1)

    @override
    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        return self._loss(model, self._train, self.batch, self._draw)

    @override
    def score(self, model: torch.nn.Module) -> float:
        return float(self._loss(model, self._test, HELD_OUT, torch.Generator().manual_seed(0)))

    def _loss(self, model: torch.nn.Module, codes: torch.Tensor, count: int, draw: Any) -> torch.Tensor:
        starts = torch.randint(len(codes) - WINDOW - 1, (count,), generator=draw)
        windows = torch.stack([codes[start : start + WINDOW + 1] for start in starts]).long()
        return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


TASKS: dict[str, type[Task]] = {"digits": Digits, "gpt": Text}
"""By name."""


def begun(name: str, rank: int, ranks: int, seed: int) -> tuple[Task, Flat]:
    """A task and its model, which is the same on all ranks."""
    task = TASKS[name](rank, ranks, seed)
    torch.manual_seed(seed)
    return task, Flat(task.model())
