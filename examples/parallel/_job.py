"""What the examples share: one process group, and the comparison of its result with that of one process.

Here stands all that is ours: `import byteps_like.torch` and the name of the backend. The examples are plain PyTorch.
"""

import argparse
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import byteps_like.torch  # noqa: F401 - makes the backend "byteps" known

TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-13}
"""Largest difference to one process, as a share of the largest element of each weight.

The sums are the same, but added in another order. That makes a difference of about n**0.5 roundings (6e-8 and 1e-16)
for n terms, here a few thousand, and the steps carry it on. A gradient that is missing, counted twice or divided by the
wrong number makes 1e-2.
"""


@dataclass(frozen=True)
class Result:
    """What training gave: the loss of the whole batch in each step, and all weights, whole, on every rank."""

    losses: list[float]
    weights: dict[str, Tensor]

    def difference(self, other: "Result") -> float:
        """The largest difference of a loss or an element, as a share of the largest loss or of its weight's largest."""
        assert self.weights.keys() == other.weights.keys(), self.weights.keys() ^ other.weights.keys()
        pairs = [(self.weights[name], weight) for name, weight in other.weights.items()]
        pairs.append((torch.tensor(self.losses), torch.tensor(other.losses)))
        return max(((own - one).abs().max() / one.abs().max()).item() for own, one in pairs)


def mean_over_ranks(loss: Tensor) -> float:
    """The loss of the whole batch, of which each rank has computed the same number of rows."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights, each of them whole also where it lies in pieces on the ranks."""
    pieces = model.state_dict()
    return {name: piece.full_tensor() if isinstance(piece, DTensor) else piece for name, piece in pieces.items()}


def collected(own: dict[str, Tensor]) -> dict[str, Tensor]:
    """All weights of a model of which every rank holds other layers."""
    parts: list[dict[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, own)
    return {name: weight for part in parts for name, weight in part.items()}


def run(main: Callable[..., Result], alone: Callable[[], Result], *variants: str, allowed: float | None = None) -> None:
    """Runs an example as one rank of the job that torchrun has started, and says how close it is to one process.

    `allowed`: the largest difference, where the numbers are not meant to be the same.
    """
    page = inspect.getdoc(inspect.getmodule(main))
    parser = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="byteps", help="byteps or gloo (default byteps)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, args.dtype))
    dist.init_process_group(args.backend)
    one = alone()
    for variant in variants or [""]:
        result = main(variant) if variant else main()
        report(variant or Path(inspect.getfile(main)).stem, result, one, allowed)
    dist.destroy_process_group()


def report(name: str, result: Result, one: Result, allowed: float | None = None) -> None:
    """Prints the result line of an example, and ends it if the numbers are not those of one process."""
    difference, limit = result.difference(one), allowed or TOLERANCE[torch.get_default_dtype()]
    if dist.get_rank() == 0:
        shown = " ".join(f"{loss:.3f}" for loss in result.losses)
        print(f"{name}: {dist.get_world_size()} ranks, backend {dist.get_backend()}, losses {shown}")
        print(f"result: difference to one process {difference:.1e}, allowed {limit:.0e}", flush=True)
    assert difference <= limit, f"{name}: {difference:.1e} from the result of one process, allowed {limit:.0e}"
