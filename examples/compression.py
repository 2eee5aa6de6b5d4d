"""One argument makes gradients smaller: the same training with several codecs, bytes and accuracy side by side.

    byteps-like run -n 2 -s 0 -- python examples/compression.py

Trains a network on scikit-learn's digits with each `compression=` below and compares what was sent with plain fp32.
Weights of the layers are encoded; biases, and matrices under 64 KiB like the last one, stay raw unless a rule names
them (docs/how-to/compression.md).
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps

CHOICES = {
    "fp32": bps.Compression.none,
    "bf16": bps.Compression.bf16,
    "int8": "int8",
    "thc4": "thc4",
    "PowerSGD, rank 4": bps.Compression.powersgd(4),
    "onebit, BytePS's way": {"compressor": "onebit", "ef": "vanilla"},
    "rules": {"0.weight": "int8", "2.*": "thc4", "*": "bf16"},
}


def train(compression: object, steps: int, route: str) -> tuple[float, int]:
    """The network's accuracy, and the bytes of gradients that this rank has sent for it."""
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), compression=compression, route=route)
    rows, before = torch.Generator().manual_seed(2), bps.stats()["payload_sent"]
    for _ in range(steps):
        own = torch.randint(len(labels), (64,), generator=rows)[bps.rank() :: bps.size()]
        optimizer.zero_grad()
        functional.cross_entropy(model(images[own]), labels[own]).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    optimizer.close()
    return float(accuracy), bps.stats()["payload_sent"] - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps per codec (default 200)")
    parser.add_argument("--route", default="auto", help="auto, server or allreduce")
    args = parser.parse_args()
    bps.init(transport="tcp")  # else ranks of one host share memory, and nothing is sent
    torch.set_num_threads(1)
    found = {name: train(compression, args.steps, args.route) for name, compression in CHOICES.items()}
    plain = max(found["fp32"][1], 1)
    for name, (accuracy, sent) in found.items():
        print(f"rank {bps.rank()}: {name}: {sent / plain:.2f} of the bytes, training accuracy {accuracy:.0%}")
    bps.shutdown()


if __name__ == "__main__":
    main()
