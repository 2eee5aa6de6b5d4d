"""A character-level GPT on the text of Python's own standard library.

    byteps-like run -n 2 -s 1 -- python examples/gpt.py
    python examples/gpt.py --steps 100                          (alone, shorter)
    byteps-like run -n 2 -s 1 -- python examples/gpt.py --device cuda

Every rank reads windows of its own from the same text; at the end the model writes some Python. About two minutes with
two workers on two cores; the loss (nats per character) falls from 5.0 to about 1.7.
"""

import argparse
import os
from pathlib import Path

import torch
from _display import Training, add_device, console, device_of, parser, save
from _gpt import CHARACTERS, GPT, sample
from torch import Tensor
from torch.nn import functional

import byteps_like.torch as bps


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--steps", type=int, default=600, help="optimizer steps (default 600)")
    known.add_argument("--batch", type=int, default=16, help="windows per step and worker (default 16)")
    known.add_argument("--window", type=int, default=64, help="characters the model sees (default 64)")
    known.add_argument("--width", type=int, default=128, help="of the model (default 128)")
    known.add_argument("--sample", type=int, default=400, help="characters to write at the end (default 400)")
    known.add_argument("--json", type=Path, metavar="FILE", help="write losses and timings there")
    add_device(known)
    return known.parse_args()


def text() -> Tensor:
    """The modules beside `os`, as ASCII codes; what little is not ASCII is folded into it."""
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.tensor(list(b"".join(module.read_bytes() for module in modules)), dtype=torch.uint8) % CHARACTERS


def main() -> None:
    args = arguments()
    bps.init()
    torch.manual_seed(bps.rank())  # different windows on each rank; the weights are rank 0's
    corpus = text()
    device = device_of(args.device)
    model = GPT(args.window, args.width).to(device)
    plain = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = bps.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    with Training("gpt", args.steps) as training:
        for _ in range(args.steps):
            starts = torch.randint(len(corpus) - args.window - 1, (args.batch,))
            windows = torch.stack([corpus[start : start + args.window + 1] for start in starts]).long().to(device)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            with training.communication():
                optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
            training.step(loss.item())
    save(training.result(example="gpt"), args.json)
    if bps.rank() == 0:
        with torch.no_grad():
            console().print(sample(model.eval().cpu(), args.window, args.sample), markup=False, highlight=False)
    bps.shutdown()


if __name__ == "__main__":
    main()
