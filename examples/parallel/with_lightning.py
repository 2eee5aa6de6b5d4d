"""PyTorch Lightning: its Trainer with the DDP strategy takes the process group that is there.

    pip install lightning
    torchrun --nproc_per_node 2 examples/parallel/with_lightning.py

Where there is no group yet, `DDPStrategy(process_group_backend="byteps")` makes one, after `import byteps_like.torch`.
"""

import logging

import torch.distributed as dist
from _digits import ROWS, STEPS, alone, images, network, optimizer_of, order
from _job import Result, mean_over_ranks, run
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, optim
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Digits(LightningModule):
    """The network of ddp.py with its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.losses = network(), []

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        """The loss of this rank's rows."""
        pictures, labels = batch
        loss = functional.cross_entropy(self.network(pictures), labels)
        self.losses.append(mean_over_ranks(loss))
        return loss

    def configure_optimizers(self) -> optim.Optimizer:
        """As everywhere in these examples."""
        return optimizer_of(self)


def main() -> Result:
    ranks, (pictures, labels), rows = dist.get_world_size(), images(), order(STEPS)
    dataset = TensorDataset(pictures[rows], labels[rows])
    loader = DataLoader(dataset, batch_size=ROWS // ranks, sampler=DistributedSampler(dataset, shuffle=False))
    strategy = DDPStrategy(process_group_backend=dist.get_backend(), cluster_environment=TorchElasticEnvironment())
    plain = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    plain |= {"accelerator": "cpu", "devices": ranks, "max_epochs": 1, "use_distributed_sampler": False}
    trainer = Trainer(strategy=strategy, **plain)
    trainer.fit(model := Digits(), loader)
    return Result(model.losses, model.network.state_dict())


if __name__ == "__main__":
    run(main, alone)
