"""Models, optimizers and pairs of runs for scenarios in which updates cross the barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import same_everywhere
from tests.scenarios.models import batch, flat, recomputed, share


class Lion(torch.optim.Optimizer):
    """The sign of a mean of gradients: an optimizer that is not torch's."""

    def __init__(self, params: Any, lr: float = 1e-3, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                parameter.sub_(torch.sign(mean.lerp(parameter.grad, 0.5)), alpha=group["lr"])
                mean.lerp_(parameter.grad, 1 - group["beta"])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Lion": Lion,
}

Loss = Callable[[nn.Module, int, int, int], torch.Tensor]


def plain_loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
    """Of a rank's share of a batch."""
    x, y = (share(part, rank, size).to(next(model.parameters()).dtype) for part in batch(step))
    return nn.functional.mse_loss(model(x), y)


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Biases have a learning rate of their own."""
    named = list(model.named_parameters())
    return [
        {"params": [item for name, item in named if "bias" not in name]},
        {"params": [item for name, item in named if "bias" in name], "lr": 0.02},
    ]


def output_of(model: nn.Module) -> torch.Tensor:
    """Of its forward."""
    with torch.no_grad():
        return model(batch(0)[0])  # type: ignore[no-any-return]


def state_of(model: nn.Module) -> torch.Tensor:
    """What its state_dict() has, as one vector."""
    return torch.cat([value.flatten() for value in model.state_dict().values()])


class Run:
    """A model with an optimizer that waits (`crosses` False) or not."""

    def __init__(self, bps: Any, crosses: bool, make: Any, model: nn.Module, **options: Any) -> None:
        self.model = model
        options |= {"cross_barrier": crosses, "model": model}
        self.optimizer = bps.DistributedOptimizer(make(groups_of(model)), model.named_parameters(), **options)

    def train(self, rank: int, size: int, steps: range, loss: Loss = plain_loss, passes: int = 1) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            for number in range(passes):
                loss(self.model, passes * step + number, rank, size).backward()
            self.optimizer.step()


def same(first: Run, second: Run) -> None:
    """The same bits in weights and in the optimizers' states."""
    first.optimizer.synchronize()
    assert torch.equal(flat(first.model), flat(second.model))
    states = [run.optimizer.state_dict() for run in (first, second)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def both(
    bps: Any, rank: int, size: int, make: Any, new: Callable[[], nn.Module], steps: int, loss: Loss = plain_loss,
    passes: int = 1, **options: Any,
) -> Run:  # fmt: skip
    """Trains the same with and without the barrier; the results are the same bits. The one that crosses it."""
    runs = [Run(bps, crosses, make, new(), **options) for crosses in (True, False)]
    for run in runs:
        run.train(rank, size, range(steps), loss, passes)
    same(*runs)
    same_everywhere(bps, flat(runs[0].model))
    return runs[0]


class Tied(nn.Module):
    """A weight of two modules, a module used twice, attention that reads weights behind its modules' backs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(20, 8)
        self.twice = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.outer = nn.Linear(8, 20)
        self.outer.weight = nn.Parameter(torch.zeros(20, 8))
        self.back = nn.Linear(20, 8)
        self.back.weight = self.inner.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.twice(torch.tanh(self.twice(self.inner(x))))
        hidden, _ = self.attention(hidden[None], hidden[None], hidden[None])
        hidden = self.back(torch.nn.functional.linear(hidden[0], self.outer.weight) * self.scale)
        return self.last(hidden)


class Zoo(nn.Module):
    """Modules of torch that use their parameters in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(20, 8))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
        self.recurrent = nn.LSTM(8, 6, num_layers=2, bidirectional=True)
        self.choice = nn.ModuleDict({"a": nn.Linear(12, 5), "b": nn.Linear(12, 5)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(5)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = recomputed(self.encoder, self.first(x)[None])
        hidden, _ = self.recurrent(hidden)
        return (self.choice["a"](hidden[0]) + self.choice["b"](hidden[0])) * self.scales[0] * self.scales[1]


class Mixing(Lion):
    """Multiplies matrices, as Muon does: autocast would do that in bfloat16."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.dim() == 2:
                    parameter.grad = parameter.grad @ parameter.grad.T @ parameter.grad
        super().step()
