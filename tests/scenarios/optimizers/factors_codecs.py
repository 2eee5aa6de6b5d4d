"""DistributedOptimizer(sufficient_factors=..., compression=...), as one rank makes it: `body(bps, rank, size)`.

Whatever a gradient travels as, and however often that changes, nothing may be lost: all that was applied and what the
codecs still remember make the sum of all gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from byteps_like.torch.job import runtime
from byteps_like.torch.reduction.feedback_state import MEMORY
from tests.fakes.settings import configure
from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import distance, fill, flat
from tests.scenarios.optimizers.factors import layers_of, odd_loss, odd_model

CLOSE = 1e-5  # codecs take float32


def large_now_and_then(model: nn.Module, rank: int, size: int, step: int) -> torch.Tensor:
    """Some batches have more rows than the matrices have rank, on one rank or on all."""
    large = {4: rank == 0, 5: True, 11: True}.get(step, False)
    return loss_of_rows(model, rank, step, 5 if large else 1 + rank % 2)


def small(model: nn.Module, rank: int, size: int, step: int) -> torch.Tensor:
    """Two batches have as many rows as the matrices have rank, or fewer."""
    return loss_of_rows(model, rank, step, 1 + rank % 2)


def loss_of_rows(model: nn.Module, rank: int, step: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(count, 2, 6, generator=generator, dtype=torch.float64)).square().mean()


def true_gradients(model: nn.Module, loss: Any, size: int, steps: Iterable[int]) -> list[torch.Tensor]:
    """Averages over all ranks, made by one process with the weights as they are."""
    own = copy.deepcopy(model)
    own.zero_grad()
    for step in steps:
        for rank in range(size):
            (loss(own, rank, size, step) / size).backward()
    return [parameter.grad.clone() for parameter in own.parameters()]


class Account:
    """What was found and what was applied since the beginning, by parameters."""

    def __init__(self, bps: Any, model: nn.Module, predivide: float = 1.0) -> None:
        self.bps, self.model, self.predivide = bps, model, predivide
        self.found = [torch.zeros_like(parameter) for parameter in model.parameters()]
        self.applied = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def note(self, found: list[torch.Tensor]) -> None:
        for total, one in zip(self.found, found, strict=True):
            total += one
        for total, parameter in zip(self.applied, self.model.parameters(), strict=True):
            total += parameter.grad

    def balance(self, optimizer: Any, names: Sequence[str] | None = None) -> None:
        memory = optimizer.state_dict().get(MEMORY, {"parameters": {}})["parameters"]
        of_all = self.bps.allgather_object({name: kinds.get("residual") for name, kinds in memory.items()})
        for (name, _), found, applied in zip(self.model.named_parameters(), self.found, self.applied, strict=True):
            if names is not None and name not in names:
                continue
            left = [own[name].double() for own in of_all if own.get(name) is not None]
            mean = sum(left, torch.zeros_like(applied)) / len(of_all) * self.predivide
            assert distance(applied + mean, found) < CLOSE, name


def conserved(
    bps: Any, rank: int, size: int, compression: Any, loss: Any = small, steps: int = 4, passes: int = 1, **more: Any
) -> tuple[Any, list[dict[str, bool]]]:
    """Trains, and balances the account after each step. The optimizer, and who had left its bucket after each step."""
    model = odd_model()
    optimizer = wrapped(bps, model, compression, backward_passes_per_step=passes, **more)
    account, ways = Account(bps, model, more.get("gradient_predivide_factor", 1.0)), []
    for step in range(steps):
        optimizer.zero_grad()
        found = true_gradients(model, loss, size, range(passes * step, passes * (step + 1)))
        for number in range(passes):
            loss(model, rank, size, passes * step + number).backward()
        optimizer.synchronize()
        for parameter in model.parameters():
            same_everywhere(bps, parameter.grad)
        account.note(found)
        account.balance(optimizer)
        with optimizer.skip_synchronize():
            optimizer.step()
        ways.append({name: layer.left for name, layer in layers_of(optimizer).items()})
    return optimizer, ways


def wrapped(bps: Any, model: nn.Module, compression: Any, **more: Any) -> Any:
    """With matrices of any size encoded."""
    configure(runtime.current(), min_compress_bytes=0)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"model": model, "sufficient_factors": True, "compression": compression, **more}
    return bps.DistributedOptimizer(inner, model.named_parameters(), **options)


def feedback(bps: Any, codec: str) -> dict[str, Any]:
    """For all, biases too."""
    return dict.fromkeys(("*.bias", "*"), bps.Compress(codec, feedback=True))


def nothing_is_lost(bps: Any, rank: int, size: int) -> None:
    """What a codec has left out of a gradient before that left its bucket is sent in the first round beside it."""
    scaled = {"gradient_predivide_factor": 2.0}
    for codec, more in (("randomk:ratio=0.25", {"passes": 2}), ("randomk:ratio=0.25", scaled), ("powersgd:rank=1", {})):
        compression = {"*": "powersgd:rank=1"} if codec.startswith("powersgd") else feedback(bps, codec)
        optimizer, seen = conserved(bps, rank, size, compression, **more)
        assert size == 1 or (seen[0]["twice.weight"] and not seen[-1]["last.weight"]), seen
        optimizer.close()


def nothing_is_lost_on_the_way_back(bps: Any, rank: int, size: int) -> None:
    """Gradients return to their buckets when batches are large, and leave them at the next look."""
    loss = large_now_and_then
    optimizer, seen = conserved(bps, rank, size, feedback(bps, "randomk:ratio=0.25"), loss, steps=14)
    ways = [step["twice.weight"] for step in seen] if size > 1 else []
    assert size == 1 or tuple(ways[step] for step in (0, 5, 8, 11)) == (True, False, True, False), ways
    optimizer.close()


def casts(bps: Any, rank: int, size: int) -> None:
    """Biases are cast, factors are not."""
    model = odd_model()
    optimizer = wrapped(bps, model, bps.Compression.bf16)
    for step in range(3):
        optimizer.zero_grad()
        found = true_gradients(model, odd_loss, size, [step])
        odd_loss(model, rank, size, step).backward()
        optimizer.synchronize()
        layers = layers_of(optimizer)
        for (name, parameter), mean in zip(model.named_parameters(), found, strict=True):
            exact = size == 1 or (step > 0 and name in layers and layers[name].left)
            assert distance(parameter.grad, mean) < (1e-12 if exact and size > 1 else 1e-2), (name, step)
    optimizer.zero_grad()


def asked_for_by_name(bps: Any, rank: int, size: int) -> None:
    """A rule for a name that asks for a codec has its way; one that asks for none leaves the weight to factors; what is
    done to whole gradients keeps them in buckets."""
    momentum = bps.Compress("randomk:ratio=0.25", momentum=0.9, feedback=True)
    rules = {"twice*": "bf16", "first*": momentum, "one*": None, "*": "int8"}
    model, marked = odd_model(), odd_model()
    optimizer = wrapped(bps, model, rules)
    for step in range(3):
        optimizer.zero_grad()
        odd_loss(model, rank, size, step).backward()
        optimizer.step()
    same_everywhere(bps, flat(model))
    assert set(layers_of(optimizer)) == (set() if size == 1 else {"one.weight", "last.weight"})
    marked.one.weight.byteps_compressor_type = "onebit"
    optimizer = wrapped(bps, marked, None)
    assert size == 1 or set(layers_of(optimizer)) == {"first.weight", "twice.weight", "last.weight"}
    optimizer.close()


def saved_between(bps: Any, rank: int, size: int) -> None:
    """What is owed when a weight has just left its bucket is in a state_dict, and another optimizer goes on with it."""
    model, account = odd_model(), None
    optimizer = wrapped(bps, model, feedback(bps, "randomk:ratio=0.25"))
    account = Account(bps, model)
    for step in range(4):
        optimizer.zero_grad()
        found = true_gradients(model, odd_loss, size, [step])
        odd_loss(model, rank, size, step).backward()
        optimizer.synchronize()
        account.note(found)
        with optimizer.skip_synchronize():
            optimizer.step()
        state = optimizer.state_dict()
        if step % 2 == 0:
            optimizer.close()
            optimizer = wrapped(bps, model, feedback(bps, "randomk:ratio=0.25"))
        optimizer.load_state_dict(state)
        account.balance(optimizer)
    optimizer.close()


def restored_when_all_have_left(bps: Any, rank: int, size: int) -> None:
    """No bucket is encoded any more when the optimizer goes back to a state in which something is owed."""
    for codec in (bps.Compress("topk:ratio=0.25", feedback=True), "powersgd:rank=1"):
        model = fill(nn.Sequential(nn.Linear(6, 16, bias=False), nn.Linear(16, 16)).double())
        optimizer = wrapped(bps, model, {"*.bias": None, "*": codec})

        def train(steps: range, model: nn.Module = model, optimizer: Any = optimizer) -> None:
            for step in steps:
                optimizer.zero_grad()
                small(model, rank, size, step).backward()
                optimizer.step()

        train(range(1))
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        assert any("residual" in memory for memory in kept[1][MEMORY]["parameters"].values())
        assert size == 1 or not optimizer._distribution.reducer.codecs.buckets
        train(range(1, 3))
        expected = flat(model).clone()
        for load, state in zip((model.load_state_dict, optimizer.load_state_dict), kept, strict=True):
            load(state)
        train(range(1, 3))
        assert torch.equal(flat(model), expected), codec
        optimizer.close()


def thrown_away(bps: Any, rank: int, size: int) -> None:
    """A round that is thrown away pays nothing of what is owed."""
    owed_on(bps, rank, size, lambda model, optimizer: optimizer.zero_grad())


def failed(bps: Any, rank: int, size: int) -> None:
    """Nor does one that another rank has thrown away."""

    def fail(model: nn.Module, optimizer: Any) -> None:
        if rank == 0:
            model.one.bias.grad.add_(1.0)
        raises(bps.MismatchError if rank else bps.InvalidArgumentError, optimizer.synchronize)

    owed_on(bps, rank, size, fail)


def owed_on(bps: Any, rank: int, size: int, end: Callable[[nn.Module, Any], None]) -> None:
    """Weights have left their buckets when a backward comes whose round is brought to an `end`, and none lands."""
    model = odd_model()
    optimizer = wrapped(bps, model, feedback(bps, "randomk:ratio=0.25"))
    account = Account(bps, model)
    for step in range(3):
        optimizer.zero_grad()
        if step == 1:
            odd_loss(model, rank, size, 9).backward()
            end(model, optimizer)
            optimizer.zero_grad()
        found = true_gradients(model, odd_loss, size, [step])
        odd_loss(model, rank, size, step).backward()
        optimizer.synchronize()
        account.note(found)
        if step > 0 and size > 1:
            account.balance(optimizer, [name for name, layer in layers_of(optimizer).items() if layer.left])
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.close()


def warm_up(bps: Any, rank: int, size: int) -> None:
    """Codecs that begin when some weights are factors already, and buckets are new."""
    late = {"*.bias": None, "*": bps.Compress("randomk:ratio=0.25", feedback=True, warmup=((2, None),))}
    optimizer, _ = conserved(bps, rank, size, late, large_now_and_then, steps=14)
    optimizer.close()


def other_rates(bps: Any, rank: int, size: int) -> None:
    """What is owed was left out of updates at the learning rate before: at another one, it counts by their ratio."""
    model = odd_model()
    optimizer = wrapped(bps, model, feedback(bps, "randomk:ratio=0.25"))
    account = Account(bps, model)
    for step, rate in enumerate((0.05, 0.02)):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        found = true_gradients(model, small, size, [step])
        small(model, rank, size, step).backward()
        optimizer.synchronize()
        for parameter in model.parameters():
            parameter.grad *= rate
        account.note([rate * one for one in found])
        with optimizer.skip_synchronize():
            torch.optim.SGD(model.parameters(), lr=1.0).step()
    names = [name for name, layer in layers_of(optimizer).items() if layer.left]
    assert size == 1 or "twice.weight" in names
    account.balance(optimizer, names)
    optimizer.close()


SCENARIOS = [
    nothing_is_lost, other_rates, nothing_is_lost_on_the_way_back, casts, asked_for_by_name, saved_between,
    restored_when_all_have_left, thrown_away, failed, warm_up,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
