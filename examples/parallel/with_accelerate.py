"""Hugging Face Accelerate: it takes the process group that is there, and wraps model, optimizer and batches.

    pip install accelerate
    torchrun --nproc_per_node 2 examples/parallel/with_accelerate.py

Accelerate itself would make a gloo group for CPUs: hence `init_process_group("byteps")` comes before `Accelerator`.
"""

import torch.distributed as dist
from _digits import ROWS, STEPS, alone, images, network, optimizer_of, order
from _job import Result, mean_over_ranks, run
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main() -> Result:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    assert accelerator.num_processes == dist.get_world_size()
    model, (pictures, labels), rows = network(), images(), order(STEPS)
    loader = DataLoader(TensorDataset(pictures[rows], labels[rows]), batch_size=ROWS)
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model), loader)
    losses = []
    for own_pictures, own_labels in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(own_pictures), own_labels)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return Result(losses, accelerator.unwrap_model(model).state_dict())


if __name__ == "__main__":
    run(main, alone)
