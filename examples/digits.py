"""A small CNN on scikit-learn's handwritten digits, trained by any number of workers to the same result.

    byteps-like run -n 2 -s 1 -- python examples/digits.py
    python examples/digits.py                                   (alone: a world of one, the same losses)
    byteps-like run -n 2 -s 1 -- python examples/digits.py --device cuda

Every rank computes its share of each batch: rows rank, rank + size, ... of it. The averaged gradient is that of the
whole batch, whatever the number of workers (which must divide --batch). In float64, so that the losses stay the same:
what float32 rounds in other places with other batches may grow to a percent of the loss in 300 steps.
"""

import argparse
from pathlib import Path

import torch
from _display import Training, add_device, console, device_of, parser, save
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--epochs", type=int, default=15, help="passes over the 1,437 training images (default 15)")
    known.add_argument("--batch", type=int, default=64, help="images per step, over all workers (default 64)")
    known.add_argument("--lr", type=float, default=0.03, help="learning rate of SGD with momentum (default 0.03)")
    known.add_argument("--seed", type=int, default=1, help="of the weights and of the order of images (default 1)")
    known.add_argument("--json", type=Path, metavar="FILE", help="write losses, accuracy and timings there")
    add_device(known)
    return known.parse_args()


def data() -> list[torch.Tensor]:
    """Training images, test images, training labels, test labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float64).unsqueeze(1) / 16
    split = train_test_split(range(len(images)), test_size=0.2, random_state=0, stratify=digits.target)
    return [part[rows] for part in (images, torch.tensor(digits.target)) for rows in split]


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 128), nn.ReLU(), nn.Linear(128, 10))


def main() -> None:
    args = arguments()
    bps.init()
    torch.set_num_threads(1)  # a step is a few milliseconds: too short to share out
    torch.manual_seed(args.seed)
    device = device_of(args.device)
    images, test_images, labels, test_labels = (part.to(device) for part in data())
    model = network().to(device, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    steps = len(images) // args.batch
    with Training("digits", args.epochs * steps) as training:
        for _ in range(args.epochs):
            order = torch.randperm(len(images))[: steps * args.batch]
            for batch in order.view(steps, args.batch):
                own = batch[bps.rank() :: bps.size()]
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images[own]), labels[own])
                loss.backward()
                with training.communication():
                    optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
                training.step(loss.item())
    own = slice(bps.rank(), None, bps.size())
    correct = (model(test_images[own]).argmax(1) == test_labels[own]).sum()
    accuracy = bps.push_pull(correct, average=False, name="correct").item() / len(test_labels)
    save(training.result(example="digits", accuracy=accuracy), args.json)
    if bps.rank() == 0:
        console().print(f"test accuracy {accuracy:.1%} · workers: {bps.size()}")
    bps.shutdown()


if __name__ == "__main__":
    main()
