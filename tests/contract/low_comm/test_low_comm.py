"""Training with few synchronizations, by servers, by collectives and alone, against a simulation with torch's
optimizers; quorum, weights, types, layouts; what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import numpy as np
import torch

import byteps_like.torch as bps
from byteps_like.compression.codec import Draw
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.updates.plain import Assign
from byteps_like.store.updates.sgd import Nesterov, Sgd
from byteps_like.torch.job import runtime
from byteps_like.torch.low_comm.coded_rounds import PART
from byteps_like.torch.low_comm.fragments import fragments_of
from byteps_like.worker.local import LocalWorker
from tests.contract.low_comm.local_training import backward, flat, model_of
from tests.contract.mixed_job import DEADLINE, MixedJob, native_worker
from tests.contract.on_runtimes import by_servers
from tests.fakes.native_world import run_native_world

RANKS, STEPS = 2, 13


def train(rank: int, samples: float = 0.0, steps: int = STEPS, **terms: Any) -> tuple[torch.Tensor, bps.LowComm]:
    model = model_of(seed=rank)  # all begin with rank 0's
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with bps.LowComm(model, inner, **terms) as low:
        for step in range(steps):
            inner.zero_grad()
            backward(model, rank, step)
            low.count(samples)
            inner.step()
    return flat(model), low


def simulated(
    outer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | None, every: int, fragments: int = 1, delay: int = 0,
    mix: float = 0.0, shares: tuple[float, ...] = (1.0, 1.0), codec: str = "", feedback: float = 0.0,
) -> list[torch.Tensor]:  # fmt: skip
    """Rank by rank, the weights after STEPS. `outer`: None takes the mean. `codec`: what it keeps of changes counts."""
    ranks = len(shares)
    models = [model_of() for _ in range(ranks)]
    size = len(flat(models[0]))
    bounds = [slice(size * n // fragments, size * (n + 1) // fragments) for n in range(fragments)]
    common = [flat(models[0])[bound].clone() for bound in bounds]
    outers = [outer([one]) if outer else None for one in common]
    pending: dict[int, int] = {}
    left = torch.zeros(ranks, size)

    def mean_of(number: int, bound: slice) -> torch.Tensor:
        changes = torch.stack([common[number] - flat(model)[bound] for model in models])
        if codec:
            changes += feedback * left[:, bound]
            kept = torch.stack([coded(codec, change) for change in changes])
            left[:, bound] = changes - kept
            changes = kept
        return common[number] - torch.tensor(shares) @ changes / sum(shares)

    def land(number: int) -> None:
        for model in models:
            weights = flat(model)
            weights[bounds[number]] = mix * weights[bounds[number]] + (1 - mix) * common[number]
            torch.nn.utils.vector_to_parameters(weights, model.parameters())

    for step in range(1, STEPS + 1):
        for rank, model in enumerate(models):
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            inner.zero_grad()
            backward(model, rank, step - 1)
            inner.step()
        for number, bound in enumerate(bounds):
            first = every * (number + 1) // fragments
            if step >= first and (step - first) % every == 0:
                mean = mean_of(number, bound)
                if outers[number] is None:
                    common[number].copy_(mean)
                else:
                    common[number].grad = common[number] - mean
                    outers[number].step()
                pending[number] = step
        for number in [number for number, begun in pending.items() if step - begun == delay]:
            land(number)
            del pending[number]
    for number in pending:
        land(number)
    return [flat(model) for model in models]


def coded(codec: str, change: torch.Tensor) -> torch.Tensor:
    """What is left of it by the codec's reference."""
    reference, x = codec_of(codec), change.numpy()
    payload = reference.encode(x, Draw(), np.zeros(0, np.float32), 1)
    return torch.from_numpy(reference.decode(payload, 1, Draw(), np.zeros(0, np.float32), x.size, 1))


def nesterov(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local_sgd": ({"outer": bps.AveragedWeights(), "every": 3}, {"outer": None, "every": 3}),
    "every_step": ({"outer": Sgd(lr=1.0), "H": 1}, {"outer": None, "every": 1}),
    "diloco": ({"every": 4}, {"outer": nesterov, "every": 4}),
    "fragments": ({"sync_every": 5, "fragments": 3}, {"outer": nesterov, "every": 5, "fragments": 3}),
    "streaming": (
        {"sync_steps": 4, "fragments": 2, "fragment_sync_delay": 3, "fragment_update_alpha": 0.25},
        {"outer": nesterov, "every": 4, "fragments": 2, "delay": 3, "mix": 0.25},
    ),
    "sparseloco": (
        {"outer": bps.AveragedWeights(), "every": 2, "codec": "sparseloco:chunk=16,keep=3", "fragments": 2},
        {"outer": None, "every": 2, "codec": "sparseloco:chunk=16,keep=3", "fragments": 2, "feedback": 0.95},
    ),
    "coded_diloco": (
        {"every": 3, "codec": "int8", "feedback": 0.5},
        {"outer": nesterov, "every": 3, "codec": "int8", "feedback": 0.5},
    ),
}


@pytest.fixture(scope="module")
def runtimes() -> Iterator[list[runtime.Runtime]]:
    job = MixedJob(makers=[native_worker] * RANKS)
    yield [runtime.Runtime(worker) for worker in job.workers]
    job.close()


def by_collectives(body: Callable[[int], Any]) -> list[Any]:
    return run_native_world(RANKS, lambda _, rank, size: body(rank))


def check(found: list[tuple[torch.Tensor, bps.LowComm]], wanted: list[torch.Tensor], versions: int) -> None:
    for (weights, low), expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        assert (low.version, low.staleness, low.left_out) == (versions, 0, 0)
        assert low.contributors == tuple(range(len(found)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["servers", "collectives"])
def test_weights_become_common(runtimes, case, way):
    terms, reference = CASES[case]

    def body(rank: int) -> Any:
        return train(rank, **terms)

    found = by_servers(runtimes, body) if way == "servers" else by_collectives(body)
    check(found, simulated(**reference), STEPS // reference["every"])


@pytest.mark.parametrize("case", ["sparseloco", "coded_diloco"])
def test_servers_that_wait_for_a_quorum_decode_changes(runtimes, case):
    """Of all ranks here, so that it is known what comes of it; in the last step, too, since leaving lands that."""
    terms, reference = (one | {"fragments": 1, "every": 1} for one in CASES[case])

    def body(rank: int) -> Any:
        return train(rank, **terms, quorum=0.99)

    check(by_servers(runtimes, body), simulated(**reference), STEPS // reference["every"])


@pytest.mark.parametrize("way", ["servers", "collectives"])
@pytest.mark.parametrize(
    ("weight", "shares"), [("samples", (2.0, 6.0)), ("tokens**2/steps", (4.0, 36.0)), (lambda s, n: s + n, (6.0, 10.0))]
)
def test_contributions_count_by_what_they_have_seen(runtimes, way, weight, shares):
    def body(rank: int) -> Any:
        return train(rank, samples=(0.5, 1.5)[rank], every=4, weight=weight)

    found = by_servers(runtimes, body) if way == "servers" else by_collectives(body)
    check(found, simulated(nesterov, 4, shares=shares), STEPS // 4)


@pytest.mark.parametrize("codec", ["", "thc4", "topk:ratio=0.5"])
@pytest.mark.parametrize("grace", [0.0, "auto"])
def test_a_quorum_waits_for_nobody_else(runtimes, grace, codec):
    """One rank contributes three times while the other has not begun; then that one's counts, late, in the next."""
    first_done, both_begin = threading.Event(), threading.Barrier(RANKS)

    def body(rank: int) -> Any:
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with bps.LowComm(model, inner, every=2, quorum=0.5, grace=grace, codec=codec) as low:
            both_begin.wait(DEADLINE)
            assert rank == 0 or first_done.wait(DEADLINE)
            for step in range(6 if rank == 0 else 2):
                inner.zero_grad()
                backward(model, rank, step)
                inner.step()
            if rank == 0:
                assert low.version == 3
                first_done.set()
        return low.version, low.staleness, low.contributors, flat(model)

    fast, slow = by_servers(runtimes, body)
    assert (fast[:3], slow[:3]) == ((4, 0, (0,)), (4, 3, (1,)))  # leaving, each has what is of all
    assert torch.equal(fast[3], slow[3])


@pytest.mark.parametrize("fragments", [1, 2])
def test_whoever_is_late_waits_for_no_others_and_nobody_is_left_alone_in_the_end(fragments):
    """Three of four contributions make a version: 4 ranks that make 5 each leave some for which others are missing."""
    ranks, steps = 4, 5
    late = threading.Event()

    def body(rank: int) -> tuple[int, torch.Tensor]:
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):  # it can be entered again
            with low_of(model, inner):
                if rank == 3:
                    assert late.wait(DEADLINE)
                for step in range(steps):
                    inner.zero_grad()
                    backward(model, rank, step)
                    inner.step()
                late.set()
        return lows[rank].version, flat(model)

    def low_of(model: torch.nn.Module, inner: torch.optim.Optimizer) -> bps.LowComm:
        rank = runtime.current().worker.rank
        return lows.setdefault(rank, bps.LowComm(model, inner, every=fragments, fragments=fragments, quorum=0.75))

    lows: dict[int, bps.LowComm] = {}
    job = MixedJob(makers=[native_worker] * ranks)
    found = by_servers([runtime.Runtime(worker) for worker in job.workers], body)
    job.close()
    versions, weights = zip(*found, strict=True)
    assert len(set(versions)) == 1 and 2 * (steps // fragments) <= versions[0] <= 2 * ranks * steps
    assert all(torch.equal(one, weights[0]) for one in weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types(runtimes, dtype):
    def body(rank: int) -> Any:
        model = model_of(rank, dtype)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with bps.LowComm(model, inner, every=2):
            for step in range(4):
                inner.zero_grad()
                backward(model, rank, step)
                inner.step()
        return flat(model)

    for found in (by_servers(runtimes, body), by_collectives(body)):
        assert found[0].dtype is dtype and torch.equal(*found) and not torch.equal(found[0], flat(model_of(0, dtype)))


def test_contributions_that_nobody_asks_for_are_not_kept(runtimes):
    def body(rank: int) -> int:
        _, low = train(rank, every=1)
        return sum(map(len, low._rounds._pushes))

    assert by_servers(runtimes, body) == [0, 0]


def test_an_exception_leaves_what_is_under_way_to_land_when_training_goes_on(runtimes):
    def body(rank: int) -> tuple[int, torch.Tensor]:
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        low = bps.LowComm(model, inner, every=2, delay=1)

        def steps(count: int) -> None:
            for step in range(count):
                inner.zero_grad()
                backward(model, rank, step)
                inner.step()

        with pytest.raises(KeyError), low:
            steps(2)
            raise KeyError
        assert low.version == 0
        with low:
            assert low.version == 1
            steps(2)
        return low.version, flat(model)

    for found in (by_servers(runtimes, body), by_collectives(body)):
        assert [version for version, _ in found] == [2, 2] and torch.equal(found[0][1], found[1][1])


def test_who_is_alone_has_an_outer_optimizer_too():
    with runtime.bound(LocalWorker()):
        weights, low = train(0, every=4)
    (wanted,) = simulated(nesterov, 4, shares=(1.0,))
    check([(weights, low)], [wanted], STEPS // 4)


@pytest.mark.parametrize("codec", ["", "sparseloco"])
def test_what_is_not_finite_is_not_applied(runtimes, codec):
    def body(rank: int) -> Any:
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with bps.LowComm(model, inner, every=1, codec=codec) as low:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, float("nan"))
            inner.step()
        return flat(model), low.left_out

    for weights, left_out in by_servers(runtimes, body) + by_collectives(body):
        assert torch.equal(weights, flat(model_of())) and left_out == 1


@pytest.mark.parametrize("numel", [4096 * 128, PART + 4096 * 3 + 11])
def test_sparseloco_sends_146_times_fewer_bytes(numel):
    def body(rank: int) -> int:
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.randn(numel, generator=torch.Generator().manual_seed(rank)))
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with bps.LowComm(model, inner, every=1, codec="sparseloco"):
            (model.weight**2).sum().backward()
            inner.step()
            before = bps.stats()["payload_sent"]
            inner.step()
        return int(bps.stats()["payload_sent"] - before)

    chunks, rest = divmod(numel, 4096)
    kept = 64 * chunks + (max(1, 64 * rest // 4096) if rest else 0)
    for sent in by_collectives(body):
        slots = -(-numel // PART)
        heads = 8 + slots * (8 + 16)  # the weight; of each slot its head and its table
        call = 64  # its description, at most
        assert kept * 14 / 8 + heads <= sent / (RANKS - 1) < kept * 14 / 8 + heads + slots * 8 + call
        assert 4 * numel / sent * (RANKS - 1) == pytest.approx(146.3, rel=0.005)


def test_fragments_are_equal_parts_of_any_layout():
    strided = torch.nn.Parameter(torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last))
    half = torch.nn.Parameter(torch.arange(24.0, 31.0).half())
    parts = fragments_of([strided, half], 4)
    assert [len(part.read()) for part in parts] == [7, 8, 8, 8]
    assert torch.equal(torch.cat([part.read() for part in parts]), torch.arange(31.0))
    parts[1].mix(-torch.arange(7.0, 15.0), own=0.5)
    parts[3].mix(-parts[3].read(), own=0.0)
    assert torch.equal(strided.detach().flatten()[:15], torch.cat([torch.arange(7.0), torch.zeros(8)]))
    assert torch.equal(half.detach(), -torch.arange(24.0, 31.0).half())
    assert strided.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"every": 0}, InvalidArgumentError, "every=0"),
        ({"every": 4, "fragments": 5}, InvalidArgumentError, "at most one per step"),
        ({"every": 400, "fragments": 200}, InvalidArgumentError, "fragments=200 of 53"),
        ({"every": 4, "delay": 4}, InvalidArgumentError, "delay=4"),
        ({"mix": 1.0}, InvalidArgumentError, "mix=1.0"),
        ({"quorum": 0.0}, InvalidArgumentError, "quorum=0.0"),
        ({"grace": 1.0}, InvalidArgumentError, "waited for anyway"),
        ({"grace": "auto"}, InvalidArgumentError, "waited for anyway"),
        ({"quorum": 0.5, "grace": "long"}, InvalidArgumentError, 'nor "auto"'),
        ({"feedback": 1.5}, InvalidArgumentError, "feedback=1.5"),
        ({"weight": "two"}, InvalidArgumentError, "weight='two'"),
        ({"outer": Assign()}, InvalidArgumentError, "outer=assign has no use for a gradient"),
        ({"H": 3, "every": 4}, TypeError, "another name for 'every'"),
        ({"H": 3, "sync_every": 4}, TypeError, "another name for 'every'"),
        ({"hours": 3}, TypeError, "unexpected keyword argument 'hours'"),
    ],
)
def test_wrong_terms(given, error, words):
    model = model_of()
    with pytest.raises(error, match=words):
        bps.LowComm(model, torch.optim.SGD(model.parameters(), lr=0.1), **given)


def test_what_can_not_be_done_where():
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with runtime.bound(LocalWorker()):
        with pytest.raises(InvalidArgumentError, match="needs servers"), bps.LowComm(model, inner, quorum=0.5):
            pass
        with pytest.raises(InvalidArgumentError, match="count"):
            train(0, weight="tokens", every=1)
        with pytest.raises(InvalidArgumentError, match="is made to be summed"):
            train(0, codec="thc4")
        with bps.LowComm(model, inner, outer=Nesterov()) as low, pytest.raises(InvalidArgumentError, match="in use"):
            low.__enter__()
