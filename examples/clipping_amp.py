"""Gradient clipping and GradScaler with a DistributedOptimizer, and bf16 on the wire.

    byteps-like run -n 2 -s 1 -- python examples/clipping_amp.py
    byteps-like run -n 2 -s 1 -- python examples/clipping_amp.py --device cuda

Both look at, and change, gradients before the step: they need the averages, not what this rank has computed. So
`synchronize()` comes first, then they, then `step()` within `skip_synchronize()`. The averages are the same on all
ranks; so are the norm, and the decision to skip a step because of an overflow.
"""

import argparse

import torch
from _display import add_device, device_of
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default 60)")
    parser.add_argument("--max-norm", type=float, default=1.0, help="longest gradient (default 1)")
    add_device(parser)
    args = parser.parse_args()

    bps.init()
    device = device_of(args.device)
    torch.set_num_threads(1)
    torch.manual_seed(bps.rank())
    truth = torch.linspace(-1, 1, 8, device=device)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    plain = torch.optim.AdamW(model.parameters(), lr=0.02)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), compression=bps.Compression.bf16)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    for step in range(args.steps):
        inputs = torch.randn(64, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = functional.mse_loss(model(inputs).squeeze(1).float(), inputs @ truth)
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        if bps.rank() == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}, norm {norm:.3f}, scale {scaler.get_scale():g}")
    norms = bps.allgather_object(norm.item())
    assert len(set(norms)) == 1, f"the ranks have drifted apart: {norms}"
    print(f"rank {bps.rank()}: same gradients on all {bps.size()} ranks")
    bps.shutdown()


if __name__ == "__main__":
    main()
