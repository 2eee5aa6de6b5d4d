"""scikit-learn's handwritten digits, a small CNN and its training by one process."""

from collections.abc import Callable, Iterator

import torch
from _job import Result
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

ROWS, STEPS = 64, 12


def network() -> nn.Module:
    """The same weights wherever it is made."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 10))


class RowsNet(nn.Module):
    """Two convolutions over rows to which `border` adds one above and one below; `total` adds up the ranks' scores."""

    def __init__(self, border: Callable[[Tensor], Tensor], total: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.border, self.total = border, total
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=(0, 1)), nn.Conv2d(8, 16, 3, padding=(0, 1))
        self.scores = nn.Linear(16 * 8, 10, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = functional.gelu(self.first(self.border(rows)))
        hidden = functional.gelu(self.second(self.border(hidden)))
        return self.total(self.scores(hidden.sum(2).flatten(1)))


def images() -> tuple[Tensor, Tensor]:
    """All 1,797 images of 8 x 8, and their labels."""
    digits = load_digits()
    return torch.tensor(digits.images).to(torch.get_default_dtype()).unsqueeze(1) / 16, torch.tensor(digits.target)


def order(steps: int) -> Tensor:
    """Which images come one after the other in so many batches."""
    return torch.randperm(1797, generator=torch.Generator().manual_seed(2))[: steps * ROWS]


def batches(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ROWS images and their labels; the same ones on every rank."""
    pictures, labels = images()
    for rows in order(steps).view(steps, ROWS):
        yield pictures[rows], labels[rows]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum: a change of the gradient changes the weights by as much, so results can be compared."""
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def alone(model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None) -> Result:
    """The same training by one process with the whole batch."""
    model = model or network()
    optimizer, losses = optimizer or optimizer_of(model), []
    for pictures, labels in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Result(losses, model.state_dict())
