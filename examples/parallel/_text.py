"""A small GPT on the text of Python's standard library, and its training by one process."""

import argparse
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from _job import Result
from torch import Tensor, nn
from torch.nn import functional

CHARACTERS, WINDOW, WIDTH, HEAD = 128, 32, 32, 4
ROWS, STEPS = 16, 6


class Attention(nn.Module):
    """Causal attention of eight heads; `attend` may be replaced by one that sees a part of the text only."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attend: Callable[..., Tensor] = functools.partial(functional.scaled_dot_product_attention, is_causal=True)

    def forward(self, hidden: Tensor) -> Tensor:
        split = [
            layer(hidden).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        return self.out(self.attend(*split).transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    """Two linear layers for each character by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(hidden)))


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Perceptron()

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.mlp(self.norm2(hidden))


class GPT(nn.Module):
    """Scores of the character that follows each one; ends and blocks can be taken out to make a stage of a pipeline."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)  # the same weights wherever it is made
        self.characters, self.places = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(layers)})
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)
        self.first = 0  # the place in the window where this rank's part begins

    def forward(self, hidden: Tensor) -> Tensor:
        if self.characters is not None:
            places = torch.arange(self.first, self.first + hidden.shape[1]).unsqueeze(0)
            hidden = self.characters(hidden) + self.places(places)
        for block in self.blocks.values():
            hidden = block(hidden)
        return hidden if self.head is None else self.head(self.norm(hidden)).clone()  # FSDP2 warns of views


def batches(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ROWS windows, and of the characters that follow; the same ones on every rank."""
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long() % CHARACTERS
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        starts = torch.randint(len(text) - WINDOW - 1, (ROWS,), generator=random)
        windows = text[starts[:, None] + torch.arange(WINDOW + 1)]
        yield windows[:, :-1], windows[:, 1:]


def loss_of(scores: Tensor, following: Tensor) -> Tensor:
    """Nats per character."""
    return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum: a change of the gradient changes the weights by as much, so results can be compared."""
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def alone(model: nn.Module | None = None, clip: float | None = None) -> Result:
    """The same training by one process with the whole batch."""
    model = model or GPT()
    optimizer, losses = optimizer_of(model), []
    for codes, following in batches():
        optimizer.zero_grad()
        loss = loss_of(model(codes), following)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return Result(losses, model.state_dict())
