"""DistributedOptimizer with a consistency, over native workers and servers: against torch's optimizers stepping in the
same order; periods, weights, closures; what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch
from mixed_job import DEADLINE, MixedJob, native_worker

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker

RANKS, STEPS = 2, 5
ALL = f"k_of_n:k={RANKS}"
"""Every step is made of all ranks' gradients."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.fixture(scope="module")
def job() -> Iterator[MixedJob]:
    made = MixedJob(makers=[native_worker] * RANKS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def runtimes(job: MixedJob) -> list[runtime.Runtime]:
    return [runtime.Runtime(worker) for worker in job.workers]


_drawing = threading.Lock()  # there is one generator for all threads


def model_of(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    with _drawing:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(8, 6, generator=draw).to(dtype), torch.randn(8, 3, generator=draw).to(dtype)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, wanted = batch(rank, step, next(model.parameters()).dtype)
    return torch.nn.functional.mse_loss(model(inputs), wanted)


def everywhere(runtimes: list[runtime.Runtime], body: Callable[[int], Any]) -> list[Any]:
    """Runs `body(rank)` on a thread per rank; their results, or the first error."""
    found: list[Any] = [None] * len(runtimes)

    def main(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            with runtime.using(runtimes[rank]):
                found[rank] = body(rank)
        except BaseException as error:  # noqa: BLE001 - raised below
            found[rank] = error

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(len(runtimes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


class Turns:
    """Ranks step one after the other, always in the same order."""

    def __init__(self) -> None:
        self._now = 0
        self._changed = threading.Condition()

    def take(self, number: int, call: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._now == number, DEADLINE)
            call()
            self._now += 1
            self._changed.notify_all()


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def synchronous(made: Callable[[Any], torch.optim.Optimizer], rates: list[float] | None = None) -> list[torch.Tensor]:
    """What one process comes to with the mean of all ranks' gradients."""
    model = model_of()
    optimizer = made(model.parameters())
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if rates is None else rates[step]
        optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(RANKS)) / RANKS).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("kind", [name for name in OPTIMIZERS if name != "rmsprop"])
def test_servers_update_as_torch_does(runtimes, kind):
    def train(rank: int) -> Any:
        model = model_of(seed=rank)  # servers begin with rank 0's
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = bps.DistributedOptimizer(OPTIMIZERS[kind](model.parameters()), consistency=ALL)
        assert (optimizer.route, optimizer.route_why) == ("server", "servers keep the weights")
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        assert kind == "adagrad" or not optimizer.state  # which servers have
        return weights(model), optimizer.contributed

    for found, contributed in everywhere(runtimes, train):
        assert_close(found, synchronous(OPTIMIZERS[kind]))
        assert (contributed.left_out, contributed.oldest) == (0, 0) and contributed.made <= 4 * STEPS


@pytest.mark.parametrize("apply", ["server", "worker"])
@pytest.mark.parametrize(("codec", "share"), [("int8", 0.26), ("fp16", 0.51), ("topk:ratio=0.05", 0.11)])
def test_what_goes_to_servers_may_be_encoded(runtimes, apply, codec, share):
    """A bias is not; with error feedback the sum of all steps is nearly that of whole ones."""
    steps, rows, columns = 30, 200, 300

    def train(rank: int, codec: str) -> Any:
        layer = torch.nn.Linear(columns, rows)
        bps.broadcast_parameters(layer.state_dict(), root_rank=0)
        begun = weights(layer)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.1), consistency=ALL, apply=apply, codec=codec
        )
        before = bps.stats()["payload_sent"]
        for step in range(steps):
            draw = torch.Generator().manual_seed(step % 3 + 10 * rank)
            optimizer.zero_grad()
            ((layer.weight * torch.randn(rows, columns, generator=draw)).sum() + layer.bias.sum()).backward()
            optimizer.step()
        sent = bps.stats()["payload_sent"] - before
        return sent, [end - begin for end, begin in zip(weights(layer), begun, strict=True)]

    whole = everywhere(runtimes, lambda rank: train(rank, ""))
    for (sent, moved), (sent_whole, moved_whole) in zip(
        everywhere(runtimes, lambda rank: train(rank, codec)), whole, strict=True
    ):
        first = 4 * rows * columns  # value, which goes as it is
        assert sent < share * sent_whole + first + 2 * steps * 4 * rows
        assert (moved[0] - moved_whole[0]).norm() < (0.6 if "topk" in codec else 0.01) * moved_whole[0].norm()
        torch.testing.assert_close(moved[1], moved_whole[1])


def test_a_schedule_of_learning_rates_reaches_the_servers(runtimes):
    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), consistency=ALL)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(STEPS):
            optimizer.zero_grad()
            optimizer.step(lambda step=step: loss_of(model, rank, step).backward())
            schedule.step()
        return weights(model)

    wanted = synchronous(OPTIMIZERS["sgd"], [0.1 * 0.5**step for step in range(STEPS)])
    for found in everywhere(runtimes, train):
        assert_close(found, wanted)


@pytest.mark.parametrize("apply", ["server", "worker"])
def test_who_steps_alone_moves_from_where_the_others_have_come(runtimes, apply):
    """Under asp, in turns: each rank's gradient is of the weights that its last step has brought."""
    made, turns, ages = OPTIMIZERS["sgd"], Turns(), []

    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        optimizer = bps.AsyncOptimizer(made(model.parameters()), damp=None, apply=apply)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
            if step == 0:  # all ranks open the store together
                optimizer._distribution._weights.open()
            turns.take(RANKS * step + rank, lambda loss=loss: (loss.backward(), optimizer.step()))
        ages.append(optimizer.contributed.oldest)
        return weights(model)

    shared, own = model_of(), [weights(model_of()) for _ in range(RANKS)]
    for step in range(STEPS):
        for rank in range(RANKS):
            here = model_of()
            _load(here, own[rank])
            loss_of(here, rank, step).backward()
            if apply == "server":
                for parameter, other in zip(shared.parameters(), here.parameters(), strict=True):
                    parameter.grad = other.grad
                made(shared.parameters()).step()
            else:
                made(here.parameters()).step()
                moved = [new - old for new, old in zip(weights(here), own[rank], strict=True)]
                _load(shared, [value + delta for value, delta in zip(weights(shared), moved, strict=True)])
            own[rank] = weights(shared)
    for rank, found in enumerate(everywhere(runtimes, train)):
        assert_close(found, own[rank])
    assert max(ages) == 1


def _load(model: torch.nn.Module, values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


@pytest.mark.parametrize("kind", ["rmsprop", "adam"])
def test_any_optimizer_can_step_here(runtimes, kind):
    """The mean of how far ranks have come, where each has made the step from the same weights."""

    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        apply = "auto" if kind == "rmsprop" else "worker"
        optimizer = bps.DistributedOptimizer(OPTIMIZERS[kind](model.parameters()), consistency=ALL, apply=apply)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        return weights(model)

    models = [model_of() for _ in range(RANKS)]
    optimizers = [OPTIMIZERS[kind](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        mean = [sum(values) / RANKS for values in zip(*map(weights, models), strict=True)]
        for model in models:
            _load(model, mean)
    for found in everywhere(runtimes, train):
        assert_close(found, mean)


def test_weights_count_what_their_ranks_have_said(runtimes):
    shares = [1.0, 3.0]

    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), consistency=ALL)
        optimizer.weight = shares[rank]
        with pytest.raises(InvalidArgumentError, match="above 0"):
            optimizer.weight = 0.0
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        return weights(model)

    model = model_of()
    plain = OPTIMIZERS["sgd"](model.parameters())
    for step in range(STEPS):
        plain.zero_grad()
        (sum(shares[rank] * loss_of(model, rank, step) for rank in range(RANKS)) / sum(shares)).backward()
        plain.step()
    for found in everywhere(runtimes, train):
        assert_close(found, weights(model))


@pytest.mark.parametrize("apply", ["server", "worker"])
def test_between_two_pulls_ranks_go_on_by_themselves(runtimes, apply):
    """With pushes and pulls after every second step, sums of the gradients in between travel."""
    every = 2

    def train(rank: int) -> tuple[list[torch.Tensor], int]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), consistency=ALL, apply=apply,
            push_every=every, pull_every=every,
        )  # fmt: skip
        for step in range(2 * every):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        return weights(model), optimizer.contributed.made

    models = [model_of() for _ in range(RANKS)]
    for step in range(2 * every):
        for rank, model in enumerate(models):
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            plain.zero_grad()
            loss_of(model, rank, step).backward()
            plain.step()
        if step % every == every - 1:
            mean = [sum(values) / RANKS for values in zip(*map(weights, models), strict=True)]
            for model in models:
                _load(model, mean)
    for found, _ in everywhere(runtimes, train):
        assert_close(found, mean)


def test_parameters_may_have_periods_of_their_own(runtimes):
    def train(rank: int) -> dict[str, int]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), consistency="asp", periods={"2.*": 3}
        )
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        named = dict(model.named_parameters())
        runtime.current().worker.barrier(DEADLINE)
        optimizer.pull()
        assert optimizer.version == 2 * RANKS
        kept = optimizer._distribution._weights._stores
        return {name: min(kept[id(parameter)].versions(name)) for name, parameter in named.items()}

    for versions in everywhere(runtimes, train):
        assert versions == {"0.weight": 6 * RANKS, "0.bias": 6 * RANKS, "2.weight": 2 * RANKS, "2.bias": 2 * RANKS}


def test_what_a_step_does_not_use_is_contributed_too(runtimes):
    """Else ranks that wait for each other would wait for ever."""

    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), consistency="ssp:s=1")
        first = weights(model)
        for step in range(4):
            optimizer.zero_grad()
            model[0](batch(rank, step)[0]).mean().backward()
            optimizer.step()
        return [new - old for new, old in zip(weights(model), first, strict=True)]

    for moved in everywhere(runtimes, train):
        assert moved[0].any() and not moved[2].any() and not moved[3].any()


def test_groups_of_parameters_have_updates_of_their_own_and_may_come_later(runtimes):
    def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model[0].parameters()), "momentum": 0.9}, {"params": list(model[2].parameters())}]

    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        first, second = groups(model)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([first], lr=0.1), consistency=ALL)
        optimizer.add_param_group(second)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        return weights(model)

    model = model_of()
    plain = torch.optim.SGD(groups(model), lr=0.1)
    for step in range(STEPS):
        plain.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(RANKS)) / RANKS).backward()
        plain.step()
    for found in everywhere(runtimes, train):
        assert_close(found, weights(model))


def test_gradients_add_up_over_several_backwards(runtimes):
    def train(rank: int) -> list[torch.Tensor]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), backward_passes_per_step=2, consistency=ALL
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            for _ in range(2):
                (loss_of(model, rank, step) / 2).backward()
            with pytest.raises(InvalidArgumentError, match="between step"):
                optimizer.set_backward_passes_per_step(1)
            optimizer.step()
        with pytest.raises(InvalidArgumentError, match="more than backward_passes_per_step=2"):
            for _ in range(3):
                loss_of(model, rank, 0).backward()
        optimizer.close()
        return weights(model)

    for found in everywhere(runtimes, train):
        assert_close(found, synchronous(OPTIMIZERS["sgd"]))


def test_half_precision_is_kept_as_fp32(runtimes):
    def train(rank: int) -> list[torch.Tensor]:
        model = model_of(dtype=torch.bfloat16)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), consistency=ALL)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        return weights(model)

    first, second = everywhere(runtimes, train)
    for one, other, begun in zip(first, second, weights(model_of(dtype=torch.bfloat16)), strict=True):
        assert one.dtype is torch.bfloat16 and torch.equal(one, other) and not torch.equal(one, begun)


def test_what_changes_gradients_after_they_have_gone_is_refused(runtimes):
    def check(rank: int) -> None:
        model = model_of()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), consistency="asp")
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model, rank, 0)).backward()
        for what in (
            optimizer.synchronize,
            lambda: optimizer.skip_synchronize().__enter__(),
            lambda: scaler.step(optimizer),
        ):
            with pytest.raises(InvalidArgumentError, match="apply='worker'"):
                what()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.raises(InvalidArgumentError, match=r"group0\.parameter\d.*apply='worker'"):
            optimizer.step()

    everywhere(runtimes, check)


def test_a_setting_of_byteps_makes_it_asynchronous(job):
    config = Config(role="worker", enable_async=True)
    asynchronous = [runtime.Runtime(worker, config=config) for worker in job.workers]

    def train(rank: int) -> tuple[list[torch.Tensor], bool]:
        model = model_of(seed=5)
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()), model.named_parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        runtime.current().worker.barrier(DEADLINE)
        optimizer.pull()
        return weights(model), bool(optimizer.state)

    for one in asynchronous:
        one._counters["weights"] = 1000  # names of their own
    (first, stepped), (second, _) = everywhere(asynchronous, train)
    assert stepped
    assert_close(first, second)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"consistency": "asp", "apply": "nobody"}, "apply='nobody' is none of auto, server, worker"),
        ({"consistency": "asp", "push_every": 0}, "push_every=0"),
        ({"consistency": "asp", "periods": {"*": 1.5}}, r"periods\['\*'\]=1.5"),
        ({"consistency": "bsp", "apply": "worker"}, "apply has no meaning"),
        ({"pull_every": 2}, "pull_every or periods has no meaning"),
        ({"damp": "inverse"}, "damp has no meaning"),
        ({"consistency": "sometimes"}, "sometimes"),
        ({"consistency": "k_of_n:k=9"}, "k"),
        ({"consistency": "asp", "op": bps.Max}, "MAX"),
    ],
)
def test_wrong_terms(runtimes, given, words):
    with runtime.using(runtimes[0]), pytest.raises(InvalidArgumentError, match=words):
        bps.DistributedOptimizer(OPTIMIZERS["sgd"](model_of().parameters()), **given)


def test_servers_have_no_update_like_this(runtimes):
    for optimizer in (
        OPTIMIZERS["rmsprop"](model_of().parameters()),
        torch.optim.SGD(model_of().parameters(), lr=0.1, momentum=0.9, dampening=0.5),
        torch.optim.Adam(model_of().parameters(), amsgrad=True),
        torch.optim.SGD(model_of().parameters(), lr=0.1, maximize=True),
    ):
        with runtime.using(runtimes[0]), pytest.raises(InvalidArgumentError, match="servers have no update like this"):
            bps.DistributedOptimizer(optimizer, consistency="asp", apply="server")


def test_options_that_nobody_knows(runtimes):
    with runtime.using(runtimes[0]), pytest.raises(TypeError, match="unexpected keyword argument 'demp'"):
        bps.DistributedOptimizer(OPTIMIZERS["sgd"](model_of().parameters()), consistency="asp", demp="inverse")


def test_who_is_alone_trains_as_the_plain_optimizer():
    model, plain = model_of(), model_of()
    with runtime.bound(LocalWorker()):
        optimizer = bps.AsyncOptimizer(OPTIMIZERS["adam"](model.parameters()))
        assert optimizer.route == "none" and "alone" in optimizer.route_why
        reference = OPTIMIZERS["adam"](plain.parameters())
        for step in range(STEPS):
            for one, trained in ((optimizer, model), (reference, plain)):
                one.zero_grad()
                loss_of(trained, 0, step).backward()
                one.step()
    assert_close(weights(model), weights(plain))


def test_coded_gradients_are_those_of_the_whole_batch_though_nobody_waits_for_one_rank():
    """Three ranks compute two of three parts each; the last to come isn't waited for, whichever it is. It may read
    several parameters while they change, so that there is only one."""
    ranks, steps = 3, 4
    coding = bps.GradientCoding(ranks, s=1)

    def model_of_one_parameter() -> torch.nn.Module:
        with _drawing:
            torch.manual_seed(0)
            return torch.nn.Linear(6, 3, bias=False)

    def loss_of_parts(model: torch.nn.Module, parts: dict[int, float], step: int) -> torch.Tensor:
        return sum((factor * loss_of(model, part, step) for part, factor in parts.items()), torch.zeros(()))

    def body(rank: int) -> tuple[torch.Tensor, int]:
        model = model_of_one_parameter()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), **coding.options)
        while optimizer.version < steps:
            step = optimizer.version
            optimizer.zero_grad()
            loss_of_parts(model, coding.factors(rank), step).backward()
            optimizer.step()
        reached = torch.cat([one.detach().flatten() for one in model.parameters()])
        optimizer.finish()
        return reached, optimizer.version

    job = MixedJob(makers=[native_worker] * ranks)
    found = everywhere([runtime.Runtime(worker) for worker in job.workers], body)
    job.close()
    model = model_of_one_parameter()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        plain.zero_grad()
        loss_of_parts(model, dict.fromkeys(range(ranks), 1 / ranks), step).backward()
        plain.step()
    wanted = torch.cat([one.detach().flatten() for one in model.parameters()])
    for weights, version in found:
        assert version >= steps
        torch.testing.assert_close(weights, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("apply", ["server", "worker"])
def test_a_consistency_can_be_changed_between_steps(runtimes, apply):
    """Each rank's own steps, one rank after the other, between those that all make together."""
    together = f"{ALL},late=next"  # the weights of whoever was first are old by then
    versions = 1 + 2 * RANKS + 1
    turn = [threading.Barrier(RANKS) for _ in range(RANKS)]

    def body(rank: int) -> tuple[int, torch.Tensor]:
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), consistency=together, apply=apply)

        def step(number: int) -> None:
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()

        step(0)
        optimizer.change_consistency("asp")
        for other in range(RANKS):
            if other == rank:
                step(1)
                step(2)  # which would wait for the others
            turn[other].wait(DEADLINE)
        optimizer.change_consistency(together)
        step(3)
        limit = time.monotonic() + DEADLINE
        while optimizer.version < versions and time.monotonic() < limit:  # whose weights were old may read at once
            optimizer.pull()
        with pytest.raises(InvalidArgumentError, match="no policy"):
            optimizer.change_consistency("never")
        return optimizer.version, torch.cat([one.detach().flatten() for one in model.parameters()])

    found = everywhere(runtimes, body)
    assert [version for version, _ in found] == [versions] * RANKS
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("consistency", ["ssp:s=0", "k_of_n:k=2,late=next", "backup:b=1", "asp"])
def test_ranks_may_make_different_numbers_of_steps_and_finish_with_the_same_weights(runtimes, consistency):
    def body(rank: int) -> tuple[int, torch.Tensor]:
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), consistency=consistency)
        for step in range(4 * rank):  # rank 0 has no batches at all
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        optimizer.finish()
        return optimizer.contributed.left_out, torch.cat([one.detach().flatten() for one in model.parameters()])

    found = everywhere(runtimes, body)
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][1], torch.cat([one.detach().flatten() for one in model_of().parameters()]))
    assert consistency.startswith("backup") or [left_out for left_out, _ in found] == [0, 0]


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_checkpoint_has_weights_and_moments(runtimes, name, tmp_path):
    """Steps after it are, to the last bit, the same after it was restored."""

    def body(rank: int) -> None:
        model = model_of()
        optimizer = bps.DistributedOptimizer(
            OPTIMIZERS[name](model.parameters()), named_parameters=model.named_parameters(), consistency=ALL
        )

        def train(first: int) -> list[torch.Tensor]:
            for step in range(first, first + 3):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
            return weights(model)

        saved = train(0)
        assert optimizer.checkpoint(tmp_path) == 3
        after = train(3)
        optimizer.restore(tmp_path)
        assert all(torch.equal(*pair) for pair in zip(weights(model), saved, strict=True))
        assert optimizer.version == 3
        assert all(torch.equal(*pair) for pair in zip(train(3), after, strict=True))

    everywhere(runtimes, body)


def test_a_checkpoint_has_all_groups_or_none(runtimes, tmp_path):
    """Groups with updates of their own are one checkpoint: where a part is damaged, none of them is restored."""
    damaged = threading.Barrier(len(runtimes))

    def body(rank: int) -> None:
        model = model_of()
        parameters = list(model.parameters())
        groups = [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.1}]
        plain = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        optimizer = bps.DistributedOptimizer(plain, named_parameters=model.named_parameters(), consistency=ALL)

        def train(first: int) -> list[torch.Tensor]:
            for step in range(first, first + 2):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
            return weights(model)

        train(0)
        assert optimizer.checkpoint(tmp_path) == 2
        assert [path.name for path in tmp_path.rglob("manifest.json")] == ["manifest.json"]
        after = train(2)
        optimizer.restore(tmp_path)
        assert all(torch.equal(*pair) for pair in zip(train(2), after, strict=True))
        damaged.wait(DEADLINE)
        if rank == 0:
            part = max(tmp_path.glob("part-*.bin"), key=lambda path: path.stat().st_size)
            data = bytearray(part.read_bytes())
            data[-1] ^= 1
            part.write_bytes(data)
        damaged.wait(DEADLINE)
        with pytest.raises(CorruptError):
            optimizer.restore(tmp_path)
        optimizer.pull()
        assert all(torch.equal(*pair) for pair in zip(weights(model), after, strict=True))

    everywhere(runtimes, body)


def test_blocks_change_nothing_where_nobody_is_cut_off_and_are_refused_where_ranks_apply_gradients(runtimes):
    made = OPTIMIZERS["sgd"]

    def train(rank: int, **terms: Any) -> list[torch.Tensor]:
        model = model_of()
        optimizer = bps.DistributedOptimizer(made(model.parameters()), backward_passes_per_step=2, **terms)
        for step in range(STEPS):
            optimizer.zero_grad()
            for _ in range(2):
                (loss_of(model, rank, step) / 2).backward()
                optimizer.block()
            optimizer.step()
        if terms:
            optimizer.finish()
        optimizer.close()
        return weights(model)

    for terms in ({}, {"consistency": ALL}):
        for found in everywhere(runtimes, lambda rank, terms=terms: train(rank, **terms)):
            assert_close(found, synchronous(made))
    with pytest.raises(InvalidArgumentError, match="block"):
        everywhere(runtimes, lambda rank: train(rank, consistency=ALL, apply="worker"))
