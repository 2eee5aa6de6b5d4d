"""How the layers of the small GPT are cut for tensor and sequence parallelism (Megatron-LM's way)."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

ENDS = {
    "characters": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "places": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}
"""Embeddings by rows of the table; what lies between the blocks is cut along the text; scores by character."""

BLOCK = {
    "norm1": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.out": RowwiseParallel(output_layouts=Shard(1)),
    "norm2": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
}
"""Heads and hidden units are shared out; norms see a part of the text."""


def cut(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts the layers of the model over the ranks of `mesh`, in place."""
    parallelize_module(model, mesh, ENDS)
    for block in model.blocks.values():
        parallelize_module(block, mesh, BLOCK)
