"""Mixture of experts: each rank has some of the experts and some of the batch; characters travel to their two experts.

    torchrun --nproc_per_node 4 examples/parallel/mixture_of_experts.py

The router sends each character to the best two of eight experts (top-2), so ranks exchange uneven and, for an expert
nobody wants, empty parts: first the counts, then the characters, and what the experts make of them comes back. The one
process it is compared with has no exchange at all: every expert sees everything, and what is not wanted counts 0.
"""

import torch
import torch.distributed as dist
from _experts import EXPERTS, Experts, with_experts
from _job import Result, collected, mean_over_ranks, run
from _text import alone as trained_alone
from _text import batches, loss_of, optimizer_of
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd


class SharedOut(Experts):
    """The same with the experts shared out over the ranks: dispatch, experts, combine."""

    def __init__(self) -> None:
        super().__init__()
        self.own = EXPERTS // dist.get_world_size()
        for number in range(EXPERTS):
            if number // self.own != dist.get_rank():
                del self.experts[str(number)]

    def forward(self, hidden: Tensor) -> Tensor:
        """Every character goes to the ranks of its two experts and comes back."""
        weights, chosen = self.choose(hidden.flatten(0, -2))
        order = chosen.flatten().argsort(stable=True)  # (character, choice) pairs, by expert
        sent = chosen.flatten().bincount(minlength=EXPERTS).view(-1, self.own)  # characters by (rank, its expert)
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent)
        out, back = sent.sum(1).tolist(), came.sum(1).tolist()
        moved = hidden.flatten(0, -2)[order // 2]
        moved = all_to_all_single_autograd(moved, back, out, dist.group.WORLD)
        numbers = torch.arange(EXPERTS).view(-1, self.own)[dist.get_rank()].repeat(len(came))
        wanted = numbers.repeat_interleave(came.flatten())
        made = torch.zeros_like(moved)
        for name, expert in self.experts.items():
            rows = (wanted == int(name)).nonzero().squeeze(1)
            made = made.index_put((rows,), expert(moved[rows]))
        made = all_to_all_single_autograd(made, out, back, dist.group.WORLD)
        share = weights.flatten()[order, None]
        return torch.zeros_like(hidden.flatten(0, -2)).index_add(0, order // 2, made * share).view_as(hidden)


def alone() -> Result:
    return trained_alone(with_experts(Experts))


def main() -> Result:
    model, ranks = with_experts(SharedOut), dist.get_world_size()
    optimizer, losses = optimizer_of(model), []
    own = slice(dist.get_rank(), None, ranks)
    for codes, following in batches():
        optimizer.zero_grad()
        loss = loss_of(model(codes[own]), following[own])
        (loss / ranks).backward()
        for name, parameter in model.named_parameters():
            if "experts" not in name:  # the gradient of an expert has come from all ranks already
                dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return Result(losses, collected(model.state_dict()))


if __name__ == "__main__":
    run(main, alone)
