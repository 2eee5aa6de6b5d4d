"""What a synchronization sends: the tensors that differ from rank 0's on some rank, bit by bit, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from byteps_like.errors import MismatchError
from byteps_like.torch.job import runtime
from byteps_like.torch.job.sealed import MAC_BYTES
from byteps_like.torch.job.trees import flatten, places_of
from byteps_like.torch.ops import differing
from byteps_like.torch.ops.differing import broadcast_differing
from byteps_like.torch.ops.packed import broadcast_packed, capacity
from byteps_like.torch.optimizer.broadcasts import check_catalogue, named_tensors
from tests.fakes.native_job import run_native_job
from tests.fakes.thread_world import run_world
from tests.scenarios.checks import raises
from tests.scenarios.models import fill

ODD: dict[str, Callable[[], torch.Tensor]] = {
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 3),
    "bool": lambda: torch.tensor([True, False, True]),
    "int16": lambda: torch.arange(5, dtype=torch.int16),
    "half": lambda: torch.ones(3, dtype=torch.bfloat16),
    "complex": lambda: torch.full((2,), 1 - 2j, dtype=torch.complex64),
    "turned": lambda: torch.arange(15.0).reshape(3, 5).t(),
    "gaps": lambda: torch.arange(36.0).reshape(6, 6)[::2, ::3],
    "one of a column": lambda: torch.arange(36.0).reshape(6, 6)[:1, 3],
    "nan": lambda: torch.full((4,), torch.nan),
    "zeros": lambda: torch.zeros(7),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
}


def raw(tensor: torch.Tensor) -> bytes:
    """Its bytes, in the order of its elements."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return bytes(flat.view(torch.uint8).tolist())


def contents(tree: Any) -> dict[str, tuple[str, bytes]]:
    return {place: (f"{each.dtype} {tuple(each.shape)}", raw(each)) for place, each in places_of(tree)}


def flip(tensor: torch.Tensor, bit: int) -> None:
    """Changes one bit of its last element."""
    with torch.no_grad():
        last = tensor[(-1,) * tensor.dim()]
        data = bytearray(raw(last))
        data[bit // 8] ^= 1 << bit % 8
        last.copy_(torch.frombuffer(data, dtype=tensor.dtype)[0])


def same_as_root(bps: Any, tree: Any) -> None:
    everybody = bps.allgather_object(contents(tree))
    assert all(one == everybody[0] for one in everybody)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """For each call of `broadcast_packed` after the digests, what was to be sent, on every rank."""
    calls: list[list[str]] = []

    def spy(runtime: Any, tensors: Any, root: int) -> None:
        if [tuple(each.shape[1:]) for each in tensors] != [(2,)] or tensors[0].dtype != torch.int64:
            calls.append([f"{each.dtype} {tuple(each.shape)}" for each in tensors])
        broadcast_packed(runtime, tensors, root)

    monkeypatch.setattr(differing, "broadcast_packed", spy)
    yield calls


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.parametrize("chosen", [*ODD, None])
def test_only_the_tensor_that_differs_on_one_rank_is_sent(
    chosen: str | None, servers: bool, sent: list[list[str]]
) -> None:
    def body(bps: Any, rank: int, size: int) -> None:
        tensors = {name: make() for name, make in ODD.items()}
        before = contents(tensors)
        if rank == 1 and chosen not in (None, "empty"):
            flip(tensors[chosen], bit=0)
            assert contents(tensors) != before
        broadcast_differing(runtime.current(), list(tensors.values()), 0)
        assert contents(tensors) == before

    run_world(3, body, servers=servers)
    if chosen in (None, "empty"):
        assert sent == []
    else:
        assert sent == [[f"{ODD[chosen]().dtype} {tuple(ODD[chosen]().shape)}"]] * 3


@pytest.mark.parametrize(("name", "bit"), [("nan", 0), ("zeros", 31)])
def test_payloads_of_nan_and_signs_of_zero_are_kept(name: str, bit: int, sent: list[list[str]]) -> None:
    """On rank 0 there is the unusual one."""

    def body(bps: Any, rank: int, size: int) -> None:
        tensor = ODD[name]()
        usual = raw(tensor)
        if rank == 0:
            flip(tensor, bit)
        broadcast_differing(runtime.current(), [tensor], 0)
        flip(tensor, bit)
        assert raw(tensor) == usual

    run_world(3, body)
    assert len(sent) == 3


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sent_is_what_differs_anywhere(seed: int, sent: list[list[str]]) -> None:
    """From another root, and with other changes on each rank."""

    def changed(rank: int) -> set[int]:
        drawn = random.Random(f"{seed} {rank}")
        return {number for number in range(20) if drawn.random() < 0.1}

    def body(bps: Any, rank: int, size: int) -> None:
        tensors = [torch.arange(float(number + 1)) for number in range(20)]
        for number in changed(rank):
            tensors[number][0] = 7.0 + rank
        expected = bps.broadcast_object([raw(tensor) for tensor in tensors], root_rank=2)
        broadcast_differing(runtime.current(), tensors, 2)
        assert [raw(tensor) for tensor in tensors] == expected

    run_world(4, body)
    somewhere = sorted(set().union(*map(changed, range(4))))
    assert sent == [[f"torch.float32 ({number + 1},)" for number in somewhere]] * 4


def moved(bps: Any, act: Callable[[], object]) -> tuple[int, int]:
    """Payload that goes out and comes in meanwhile."""
    before = bps.stats()
    act()
    sent, received = (bps.stats()[kind] - before.get(kind, 0) for kind in ("payload_sent", "payload_received"))
    return sent, received


def expected_bytes(rank: int, tensors: int, differing: int) -> tuple[int, int]:
    """Digests and what differs go up from rank 0 only, a mark per tensor from all; all get all three."""
    broadcasts = capacity(16 * tensors) + (capacity(differing) if differing else 0)
    marks = 4 * tensors
    return marks + (broadcasts if rank == 0 else 0), marks + broadcasts


@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_digests_marks_and_what_differs(size: int) -> None:
    count, numel = 50, 1000

    def body(bps: Any, rank: int, size: int) -> None:
        tensors = [torch.full((numel,), float(number)) for number in range(count)]
        synchronize = partial(broadcast_differing, runtime.current(), tensors, 0)
        synchronize()  # names are agreed on
        assert moved(bps, synchronize) == expected_bytes(rank, count, 0)
        for _ in range(2):
            if rank == size - 1:
                flip(tensors[17], bit=3)
            found = moved(bps, synchronize)
        assert found == expected_bytes(rank, count, 4 * numel)
        assert tensors[17].eq(17).all()

    run_native_job(size, body, transport="tcp")


def layers(value: float = 1.0) -> nn.Module:
    model = nn.Sequential(*[nn.Linear(100, 100) for _ in range(8)], nn.BatchNorm1d(100))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def test_a_model_that_all_have_costs_its_names_and_digests() -> None:
    def body(bps: Any, rank: int, size: int) -> None:
        model = layers()
        state = bps.elastic.TorchState(model)
        names = partial(check_catalogue, named_tensors(model.state_dict()), 0)
        for _ in range(2):  # names are agreed on in the first
            catalogue, found = moved(bps, names), moved(bps, state.sync)
        digests = expected_bytes(rank, len(model.state_dict()), 0)
        assert found == tuple(map(sum, zip(catalogue, digests, strict=True)))
        with torch.no_grad():
            model[3].weight[5, 5] = float(rank == 1)
        differs = (capacity(4 * 100 * 100) if rank == 0 else 0), capacity(4 * 100 * 100)
        state.sync()
        with torch.no_grad():
            model[3].weight[5, 5] = float(rank == 1)
        assert moved(bps, state.sync) == tuple(map(sum, zip(found, differs, strict=True)))
        same_as_root(bps, model.state_dict())

    run_native_job(3, body, transport="tcp")


def test_an_optimizer_that_all_have_costs_its_structure_and_digests() -> None:
    """Then one bit of one moment differs on one rank."""

    def body(bps: Any, rank: int, size: int) -> None:
        model = layers()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.ones(4, 100)).sum().backward()
        optimizer.step()
        state = bps.elastic.TorchState(optimizer=optimizer)
        text, tensors = flatten(optimizer.state_dict())
        structure = (
            partial(bps.push_pull, torch.zeros(size, dtype=torch.int64)),
            partial(broadcast_packed, runtime.current(), [torch.zeros(MAC_BYTES + len(text), dtype=torch.uint8)], 0),
        )
        for _ in range(2):  # names are agreed on in the first
            parts = [*(moved(bps, act) for act in structure), expected_bytes(rank, len(tensors), 0)]
            found = moved(bps, state.sync)
        assert found == tuple(map(sum, zip(*parts, strict=True)))
        for _ in range(2):
            moment = optimizer.state[model[3].weight]["exp_avg"]
            if rank == 2:
                flip(moment, bit=0)
            last = moved(bps, state.sync)
        differs = (capacity(moment.nbytes) if rank == 0 else 0), capacity(moment.nbytes)
        assert last == tuple(map(sum, zip(found, differs, strict=True)))
        same_as_root(bps, optimizer.state_dict())

    run_native_job(3, body, transport="tcp")


MAKERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), amsgrad=True),
    lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3),
]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.linspace(-1, 1, 12).reshape(4, 3)).square().sum()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)


def reference(make: Callable[[Any], torch.optim.Optimizer], steps: int) -> tuple[Any, Any]:
    """What rank 0 has by itself."""
    model = fill(nn.Linear(3, 2), seed=0)
    optimizer = make(model.parameters())
    trained(model, optimizer, steps)
    return contents(model.state_dict()), contents(optimizer.state_dict())


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.parametrize("steps", [(3, 0, 3), (0, 3, 0), (2, 1, 5)], ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_all_go_on_from_rank_0(make: Any, steps: tuple[int, ...], servers: bool) -> None:
    """Also where an optimizer has made no step yet, or has made more; all have the reference's next step, too."""
    expected = [reference(make, steps[0] + more) for more in (0, 1)]

    def body(bps: Any, rank: int, size: int) -> None:
        model = fill(nn.Linear(3, 2), seed=min(rank, 1))
        optimizer = make(model.parameters())
        trained(model, optimizer, steps[rank])
        if rank:
            optimizer.param_groups[0]["lr"] = 7.0
        places = [parameter.data_ptr() for parameter in model.parameters()]
        state = bps.elastic.TorchState(model, optimizer)
        for _ in range(2):
            state.sync()
            assert (contents(model.state_dict()), contents(optimizer.state_dict())) == expected[0]
            assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
        assert [parameter.data_ptr() for parameter in model.parameters()] == places
        trained(model, optimizer, 1)
        state.restore()
        assert (contents(model.state_dict()), contents(optimizer.state_dict())) == expected[0]
        trained(model, optimizer, 1)
        assert (contents(model.state_dict()), contents(optimizer.state_dict())) == expected[1]

    run_world(3, body, servers=servers)


def test_ranks_whose_models_differ_in_more_than_values_are_told() -> None:
    def body(bps: Any, rank: int, size: int) -> None:
        models = [nn.Linear(3, 2 if rank < 2 else 4), nn.Linear(3, 2, bias=rank < 2), nn.Linear(3, 2).double()]
        if rank != 2:
            models[2] = models[2].float()
        words = ["'weight float32 (4, 3)'", "has 1 tensors where the root has 2", "'weight float64 (2, 3)'"]
        for model, word in zip(models, words, strict=True):
            raises(MismatchError, bps.elastic.TorchState(model).sync, "broadcast_parameters: rank 2", word)
        bps.elastic.TorchState(nn.Flatten()).sync()

    run_world(3, body)


def test_a_world_of_one_sends_nothing() -> None:
    def body(bps: Any, rank: int, size: int) -> None:
        model = layers()
        before = contents(model.state_dict())
        bps.elastic.TorchState(model, torch.optim.Adam(model.parameters())).sync()
        assert contents(model.state_dict()) == before

    run_world(1, body)
