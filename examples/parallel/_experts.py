"""A layer of experts in one process: what the one that is shared out over ranks is compared with."""

import torch
from _text import GPT, WIDTH, Perceptron
from torch import Tensor, nn

EXPERTS = 8


class Experts(nn.Module):
    """All experts in one place, each of them applied to every character: slow and plain."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleDict({str(number): Perceptron() for number in range(EXPERTS)})

    def choose(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the two best experts of each character."""
        best = self.router(hidden).topk(2)
        return best.values.softmax(-1), best.indices

    def forward(self, hidden: Tensor) -> Tensor:
        weights, chosen = self.choose(hidden)
        shares = torch.zeros(*hidden.shape[:-1], EXPERTS).scatter(-1, chosen, weights)
        return sum(expert(hidden) * shares[..., int(name), None] for name, expert in self.experts.items())


def with_experts(kind: type[Experts]) -> GPT:
    """A GPT of two blocks with experts in place of the perceptrons."""
    model = GPT(2)
    for block in model.blocks.values():
        block.mlp = kind()
    return model
