"""DTensor tensor parallelism with sequence parallelism: every layer is cut over all ranks, and so is the loss.

    torchrun --nproc_per_node 2 examples/parallel/tensor_parallel.py

All ranks read the same batch. Between the blocks each holds a part of the text; a block gathers the text, computes its
heads and hidden units, and scatters the sums.
"""

import torch.distributed as dist
from _job import Result, run, whole_weights
from _tensor_plan import cut
from _text import GPT, alone, batches, loss_of, optimizer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel


def main() -> Result:
    model = GPT()
    cut(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer, losses = optimizer_of(model), []
    for codes, following in batches():
        optimizer.zero_grad()
        with loss_parallel():
            loss = loss_of(model(codes), following)
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item())
    return Result(losses, whole_weights(model))


if __name__ == "__main__":
    run(main, alone)
