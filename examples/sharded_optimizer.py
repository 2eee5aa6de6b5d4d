"""AdamW whose state is shared out over the ranks: each has 1/n of it, and the model trains as before.

    byteps-like run -n 2 -s 0 -- python examples/sharded_optimizer.py

Prints what a rank keeps, clips by the optimizer's own method (gradients are in shards), and continues the training
in a plain AdamW from the gathered state_dict. See docs/how-to/sharding.md.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default 60)")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers (default 256)")
    parser.add_argument("--max-norm", type=float, default=1.0, help="longest gradient (default 1)")
    args = parser.parse_args()

    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(bps.rank())
    truth = torch.linspace(-1, 1, 8)
    model = nn.Sequential(nn.Linear(8, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU())
    model.append(nn.Linear(args.width, 1))
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), shard="optimizer")
    for step in range(args.steps):
        inputs = torch.randn(64, 8)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
        loss.backward()
        norm = optimizer.clip_grad_norm_(args.max_norm)
        optimizer.step()
        if bps.rank() == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}, norm {norm:.3f}")
    memory, state = optimizer.shard_memory(), optimizer.state_dict()
    whole = sum(value.nbytes for entry in state["state"].values() for value in entry.values())
    print(
        f"rank {bps.rank()} of {bps.size()}: {memory.state} of {whole} bytes of state, {memory.gradients} of gradients"
    )
    alone = torch.optim.AdamW(model.parameters(), lr=0.003)
    alone.load_state_dict(state)
    optimizer.close()
    bps.shutdown()


if __name__ == "__main__":
    main()
