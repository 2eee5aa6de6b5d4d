"""DistributedOptimizer(sufficient_factors=...) beside one process with all ranks' batches. `body(bps, rank, size)`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from byteps_like.torch.gradients.freed import FreedGradient
from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import distance, fill, flat, mlp, recomputed

TOLERANCE = 1e-10  # of float64; products add in another order


class Odd(nn.Module):
    """3-d inputs, a layer used twice, two layers with one weight, a layer without bias in front, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)
        self.twice = nn.Linear(16, 16)
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.other.weight = self.one.weight
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.twice(self.first(x)).tanh()).tanh()
        return self.last(self.norm(self.other(self.one(x).tanh())))


Batch = Callable[[int, int], torch.Tensor]
"""Of rank and step: its inputs; 3-d."""


def rows_of(rank: int, step: int) -> torch.Tensor:
    """Another number of rows on each rank; in step 3 more than there is room for, then fewer."""
    count = {3: 4, 4: 1}.get(step, 2 + rank % 2)
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(count, 2, 6, generator=generator, dtype=torch.float64)


def trained(
    bps: Any, rank: int, size: int, make: Callable[[], nn.Module], loss: Callable[..., Any], numbers: range,
    passes: int = 1, tolerance: float = TOLERANCE, **options: Any,
) -> tuple[nn.Module, Any]:  # fmt: skip
    """Trains, and compares every gradient of every step. `loss(model, rank, size, step)`."""
    model, reference = make(), make()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"model": model, "sufficient_factors": True, "backward_passes_per_step": passes, **options}
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), **options)
    plain = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for step in numbers:
        optimizer.zero_grad()
        plain.zero_grad()
        for number in range(passes):
            mine = loss(model, rank, size, passes * step + number)
            mine.backward() if mine is not None else None
            for other in range(size):
                theirs = loss(reference, other, size, passes * step + number)
                (theirs / size).backward() if theirs is not None else None
        optimizer.synchronize()
        for (name, ours), plains in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert (ours.grad is None) == (plains.grad is None), (name, step)
            if ours.grad is not None:
                assert distance(ours.grad, plains.grad) < tolerance, (name, step)
                same_everywhere(bps, ours.grad)
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
    assert distance(flat(model), flat(reference)) < 10 * tolerance
    return model, optimizer


def odd_loss(model: nn.Module, rank: int, size: int, step: int) -> torch.Tensor:
    return model(rows_of(rank, step)).square().mean()


def odd_model() -> nn.Module:
    return fill(Odd().double())


def layers_of(optimizer: Any) -> dict[str, Any]:
    """Of the reducer: none in a world of one."""
    return {layer.name: layer for layer in router_of(optimizer).layers}


def router_of(optimizer: Any) -> Any:
    return optimizer._distribution.reducer.beside[-1]


def equal_to_the_dense(bps: Any, rank: int, size: int) -> None:
    _, optimizer = trained(bps, rank, size, odd_model, odd_loss, range(6))
    layers = layers_of(optimizer)
    assert set(layers) == (set() if size == 1 else {"first.weight", "twice.weight", "one.weight", "last.weight"})
    if size > 1:
        # 16 x 16 has room for the 8 rows of two uses; the last layer, of 3 outputs, has more rows than rank.
        assert layers["twice.weight"].left and not layers["last.weight"].left


def accumulated_and_summed(bps: Any, rank: int, size: int) -> None:
    trained(bps, rank, size, odd_model, odd_loss, range(3), passes=2)
    scaled = {"gradient_predivide_factor": 2.0}
    trained(bps, rank, size, odd_model, odd_loss, range(3), **scaled)


def weight_gradients_are_not_computed(bps: Any, rank: int, size: int) -> None:
    model, optimizer = trained(bps, rank, size, odd_model, odd_loss, range(2))
    optimizer.zero_grad()
    odd_loss(model, rank, size, 2).backward()
    for name, layer in layers_of(optimizer).items():
        assert isinstance(layer.parameter.grad, FreedGradient) == layer.left, name
    assert model.twice.bias.grad is not None
    copied = copy.deepcopy(model)  # its layers are its own, and give their gradients to themselves
    odd_loss(copied, rank, size, 2).backward()
    assert all(parameter.grad is not None for parameter in copied.parameters())
    with torch.no_grad():
        odd_loss(model, rank, size, 2)
    assert all(module.weight.requires_grad for module in model.modules() if isinstance(module, nn.Linear))
    optimizer.zero_grad()


def autocast(bps: Any, rank: int, size: int) -> None:
    """Factors travel in the type in which autograd would have multiplied them; float32 again when that is off."""

    def loss(model: nn.Module, rank: int, size: int, step: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step < 4):
            return model(rows_of(rank, 0).float()).float().square().mean()

    def make() -> nn.Module:
        return fill(Odd())

    _, optimizer = trained(bps, rank, size, make, loss, range(3), tolerance=2e-2)
    assert all(layer.wire is torch.bfloat16 for layer in layers_of(optimizer).values())
    _, optimizer = trained(bps, rank, size, make, loss, range(3, 7), tolerance=2e-2)
    assert all(layer.wire is torch.float32 for layer in layers_of(optimizer).values())


def frozen_and_unused(bps: Any, rank: int, size: int) -> None:
    """A layer freezes and thaws; another is used on some ranks, then on all, then on none."""

    def make() -> nn.Module:
        return nn.ModuleList([mlp(widths=(6, 16, 16)), mlp(widths=(6, 16, 16), seed=2)])

    def loss(model: Any, rank: int, size: int, step: int) -> torch.Tensor:
        model[0][0].requires_grad_(step % 3 != 1)
        x = rows_of(0, 0)[:1].reshape(-1, 6) * (rank + 1)
        out = model[0](x).square().mean()
        used = {0: True, 1: True, 2: rank == 0, 3: False, 4: rank != 0}.get(step, True)
        return out + model[1](x).square().mean() if used else out

    trained(bps, rank, size, make, loss, range(7))


def frozen_for_long(bps: Any, rank: int, size: int) -> None:
    """A weight that travelled as factors has nothing to send until it returns to its bucket. It thaws when gradients
    are cleared already."""

    def loss(model: Any, rank: int, size: int, step: int) -> torch.Tensor:
        model[0].weight.requires_grad_(not 2 <= step < 20)
        return model(rows_of(rank, 0)[:1].reshape(-1, 6)).square().mean()

    trained(bps, rank, size, lambda: mlp(widths=(6, 16, 16)), loss, range(23))  # type: ignore[arg-type]


def nothing_on_a_rank(bps: Any, rank: int, size: int) -> None:
    def loss(model: nn.Module, rank: int, size: int, step: int) -> torch.Tensor | None:
        return None if rank == step % 2 else odd_loss(model, rank, size, step)

    trained(bps, rank, size, odd_model, loss, range(4))


def used_by_others_too(bps: Any, rank: int, size: int) -> None:
    """Gradients that come by other ways than the layer's own are reduced beside its factors."""

    def loss(model: Any, rank: int, size: int, step: int) -> torch.Tensor:
        decay = model.twice.weight.square().sum() * 0.01 if step != 1 else 0.0
        return odd_loss(model, rank, size, step) + decay * (rank + 1)

    trained(bps, rank, size, odd_model, loss, range(5))


def checkpointed(bps: Any, rank: int, size: int) -> None:
    def loss(model: nn.Module, rank: int, size: int, step: int) -> torch.Tensor:
        return recomputed(model, rows_of(rank, step).requires_grad_()).square().mean()

    trained(bps, rank, size, odd_model, loss, range(4))


def not_cleared(bps: Any, rank: int, size: int) -> None:
    """Gradients that stay are added to, as a plain optimizer's."""
    model, reference = odd_model(), odd_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = bps.DistributedOptimizer(inner, model=model, sufficient_factors=True)
    plain = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(4):
        odd_loss(model, rank, size, step).backward()
        for other in range(size):
            (odd_loss(reference, other, size, step) / size).backward()
        optimizer.step()
        plain.step()
    assert distance(flat(model), flat(reference)) < TOLERANCE


def thrown_away(bps: Any, rank: int, size: int) -> None:
    """By the optimizer, and by the module before another backward."""
    model, optimizer = trained(bps, rank, size, odd_model, odd_loss, range(2))
    reference = copy.deepcopy(model)
    reference.zero_grad()
    for clear in (optimizer.zero_grad, model.zero_grad):
        odd_loss(model, rank, size, 7).backward()
        clear()
        odd_loss(model, rank, size, 2).backward()
        for other in range(size):
            (odd_loss(reference, other, size, 2) / size).backward()
        optimizer.synchronize()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert distance(ours.grad, theirs.grad) < TOLERANCE
        optimizer.zero_grad()
        reference.zero_grad()
    odd_loss(model, rank, size, 3).backward()
    raises(bps.InvalidArgumentError, lambda: odd_loss(model, rank, size, 3).backward(), "backward_passes_per_step")
    optimizer.close()
    model.zero_grad()
    odd_loss(model, rank, size, 3).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def averages_those_of_all(
    optimizer: Any, model: nn.Module, loss: Callable[..., torch.Tensor], rank: int, size: int, steps: Iterable[int]
) -> None:
    """A backward for each of `steps`, and then every gradient is what one process has for all ranks."""
    reference = copy.deepcopy(model)
    reference.zero_grad()
    for step in steps:
        loss(model, rank, step).backward()
        for other in range(size):
            (loss(reference, other, step) / size).backward()
    optimizer.synchronize()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert distance(ours.grad, theirs.grad) < TOLERANCE


def all_thrown_away(bps: Any, rank: int, size: int) -> None:
    """The same where no gradient is in a bucket; with more passes it is the count that starts again."""

    def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        # The weight is used beside its layer, too: before or behind it in backward.
        first, *_, last = (weight.square().sum() * (rank + 1) for weight in model.parameters())
        beside = {6: first, 7: last}.get(step, torch.zeros(()))
        return model(rows_of(rank, step)[:1]).square().mean() + beside

    model = fill(nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(3))).double())
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model=model, sufficient_factors=True
    )
    loss(model, rank, 0).backward()
    optimizer.step()
    assert size == 1 or all(layer.left for layer in layers_of(optimizer).values())
    for passes, cleared in ((1, 1), (2, 1), (2, 2)):
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(passes)
        for _ in range(cleared):
            loss(model, rank, 9).backward()
        model.zero_grad()
        averages_those_of_all(optimizer, model, loss, rank, size, range(6, 6 + passes))
        optimizer.zero_grad()
        for _ in range(passes):
            loss(model, rank, 7).backward()
        raises(bps.InvalidArgumentError, lambda: loss(model, rank, 6).backward(), "backward_passes_per_step")
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    loss(model, rank, 3).backward()
    if size > 1:
        raises(bps.InvalidArgumentError, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), "synchronize()")
        model[0].weight.grad = torch.ones_like(model[0].weight)
        raises(bps.InvalidArgumentError, optimizer.step, "changed after")
    optimizer.zero_grad()
    loss(model, rank, 3).backward()
    optimizer.close()
    assert not any(isinstance(parameter.grad, FreedGradient) for parameter in model.parameters())


class Sandwich(nn.Module):
    """A layer that is used before and after another one."""

    def __init__(self) -> None:
        super().__init__()
        self.around, self.inner = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.around(self.inner(self.around(x).tanh()).tanh())


def thrown_away_between_two_uses(bps: Any, rank: int, size: int) -> None:
    """Backward finds gradients that were sent and cleared when it has come to a layer's second use, not to its first:
    what it has kept of the second use stays."""

    def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        return model(rows_of(rank, step)[:1]).square().mean()

    model = fill(Sandwich().double())
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = bps.DistributedOptimizer(inner, model=model, sufficient_factors=True)
    for step in range(3):
        optimizer.zero_grad()
        if step == 2:
            assert size == 1 or all(layer.left for layer in layers_of(optimizer).values())
            loss(model, rank, 9).backward()
            model.zero_grad()
        averages_those_of_all(optimizer, model, loss, rank, size, [step])
    optimizer.zero_grad()


def closed_between_forward_and_backward(bps: Any, rank: int, size: int) -> None:
    """Factors that were kept for an optimizer which is gone become plain gradients."""
    model, optimizer = trained(bps, rank, size, odd_model, odd_loss, range(2))
    reference = copy.deepcopy(model)
    reference.zero_grad()
    optimizer.zero_grad()
    found = odd_loss(model, rank, size, 2)
    optimizer.close()
    found.backward()
    odd_loss(reference, rank, size, 2).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert distance(ours.grad, theirs.grad) < TOLERANCE


def element_types(bps: Any, rank: int, size: int) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)):

        def make(dtype: torch.dtype = dtype) -> nn.Module:
            return fill(Odd().to(dtype))

        def loss(model: nn.Module, rank: int, size: int, step: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return model(rows_of(rank, step).to(dtype)).square().mean()

        _, optimizer = trained(bps, rank, size, make, loss, range(3), tolerance=tolerance)
        assert all(layer.wire is dtype for layer in layers_of(optimizer).values())
        optimizer.close()


def groups_are_added(bps: Any, rank: int, size: int) -> None:
    model, reference = odd_model(), odd_model()
    results = []
    for module, options in ((model, {"model": model, "sufficient_factors": True}), (reference, {})):
        early = [module.first.weight, *module.twice.parameters()]
        known = {id(parameter) for parameter in early}
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(early, lr=0.05), **options)
        for step in range(5):
            if step == 2:
                later = [parameter for parameter in module.parameters() if id(parameter) not in known]
                optimizer.add_param_group({"params": later})
            optimizer.zero_grad()
            module.zero_grad()
            odd_loss(module, rank, size, 0).backward()
            optimizer.step()
        results.append(flat(module))
    assert distance(*results) < TOLERANCE


def groups_are_taken_away(bps: Any, rank: int, size: int) -> None:
    """Of weights that travel as factors, and of embeddings that travel by rows: from then on their gradients are each
    rank's own."""
    model = nn.ModuleList([nn.Embedding(16, 16, sparse=True), fill(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 3)))])
    going = [model[0].weight, model[1][0].weight]  # type: ignore[index, union-attr]
    known = {id(parameter) for parameter in going}
    groups = [[parameter for parameter in model.parameters() if id(parameter) not in known], going]
    inner = torch.optim.SGD([{"params": group} for group in groups], lr=0.05)
    optimizer = bps.DistributedOptimizer(inner, model=model, sufficient_factors=True)
    for step in range(4):
        if step == 2:
            assert size == 1 or all(any(item in beside for beside in optimizer._distribution.reducer.beside)
                                    for item in going)  # fmt: skip
            optimizer.param_groups.pop()
        optimizer.zero_grad()
        model.zero_grad()
        model[1](model[0](torch.tensor([rank, 5]))).square().mean().backward()
        optimizer.step()
    for parameter in groups[0]:
        same_everywhere(bps, parameter)
    own = bps.allgather_object([parameter.grad.to_dense() for parameter in going])
    assert size == 1 or not any(torch.equal(*pair) for pair in zip(own[0], own[1], strict=True))


def cleared_between_forward_and_backward(bps: Any, rank: int, size: int) -> None:
    """As in torch's tutorials. The rows of the forward before count all the same."""
    model = odd_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), model=model, sufficient_factors=True)
    for step in range(2):
        loss = odd_loss(model, rank, size, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert size == 1 or layers_of(optimizer)["twice.weight"].left


def refusals(bps: Any, rank: int, size: int) -> None:
    model = odd_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong: list[dict[str, Any]] = [
        {"sufficient_factors": "auto"}, {"sufficient_factors": "never", "model": model},
        {"sufficient_factors": True, "model": model, "shard": "optimizer"},
        {"sufficient_factors": True, "model": model, "op": bps.Adasum},
    ]  # fmt: skip
    for options in wrong:
        call = functools.partial(bps.DistributedOptimizer, inner, **options)
        raises(bps.InvalidArgumentError, call, "sufficient_factors")


def measured_and_chosen(bps: Any, rank: int, size: int) -> None:
    _, optimizer = trained(bps, rank, size, odd_model, odd_loss, range(4), sufficient_factors="auto")
    if size > 1:
        link = router_of(optimizer)._links.of(optimizer._distribution.reducer.route, "")
        assert len(set(bps.allgather_object(repr(link)))) == 1 and link.multiply_add > 0.0
        assert not [name for name in optimizer._distribution.reducer.route.names if "measured" in name]


SCENARIOS = [
    equal_to_the_dense, accumulated_and_summed, weight_gradients_are_not_computed, autocast, frozen_and_unused,
    frozen_for_long, nothing_on_a_rank, used_by_others_too, checkpointed, not_cleared, thrown_away,
    all_thrown_away, thrown_away_between_two_uses,
    closed_between_forward_and_backward, element_types, groups_are_added, groups_are_taken_away,
    cleared_between_forward_and_backward, refusals, measured_and_chosen,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
