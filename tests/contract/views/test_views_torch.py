"""What a process holds for life, through views of other sizes and members: each round goes by its own view."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import byteps_like.torch as bps
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job import pacing, runtime
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.collective import CollectiveWorker
from byteps_like.worker.local import PrivateMemory
from tests.fakes.mirrored_worker import MirroredWorker
from tests.fakes.views import view_of

OWN = 6
VIEWS = [[5, 6], [6, 7, 8, 9, 10], [6], [3, 4, 5, 6, 7, 8, 9, 10], [6, 5, 9]]
"""Sizes 2, 5, 1, 8 and 3, in which this worker has the ranks 1, 0, 0, 3 and 0."""


@pytest.fixture
def worker() -> Iterator[MirroredWorker]:
    """That calls of the test go through."""
    made = MirroredWorker(OWN, VIEWS[0])
    with runtime.bound(made):
        yield made


@given(st.lists(st.integers(0, 9), min_size=1, unique=True), st.sets(st.integers(0, 9)), st.data())
def test_some_members_stand_where_they_do_among_all(members: list[int], some: set[int], data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(members))
    standing = view_of(members).standing(own)
    chosen = sorted(some | {own}, reverse=True)
    there = [member for member in members if member in chosen]
    assert (standing.size, standing.member, members[standing.rank]) == (len(members), own, own)
    assert [members[rank] for rank in standing.ranks_of(chosen)] == there
    among = standing.among(chosen)
    assert (list(among.members), among.rank) == (there, there.index(own))


def test_rank_and_size_are_those_of_the_view_in_force(worker: MirroredWorker) -> None:
    for members in VIEWS:
        worker.enter(members)
        assert (bps.rank(), bps.size()) == (members.index(OWN), len(members))
        assert bps.global_process_set.ranks == list(range(len(members)))
        assert runtime.current().scope(None).ranks == tuple(range(len(members)))


def test_the_world_of_a_scope_has_lanes_among_the_members_in_force(worker: MirroredWorker) -> None:
    scope = runtime.current().scope(None)
    for members in VIEWS:
        worker.enter(members)
        assert scope.lane("x").ranks == tuple(range(len(members)))
        assert (scope.rank, scope.size) == (members.index(OWN), len(members))
        with pytest.raises(InvalidArgumentError, match=f"root_rank=8 is not a rank of the world of {len(members)}"):
            scope.root(8)


def test_a_process_set_is_made_of_members_whatever_their_ranks(worker: MirroredWorker) -> None:
    worker.enter([5, 6, 7, 8])
    chosen = bps.add_process_set([1, 3])
    for members, ranks in (([6, 7, 8, 9], [0, 2]), ([4, 5, 8, 6], [2, 3]), ([6, 9], [0])):
        worker.enter(members)
        scope = runtime.current().scope(chosen)
        assert chosen.ranks == ranks
        assert (chosen.size(), scope.size, scope.rank) == (len(ranks), len(ranks), chosen.rank())
        assert list(scope.lane("x").ranks) == ranks
        assert runtime.current().has_scope(chosen.process_set_id or -1, chosen.ranks)
    worker.enter([6, 9, 10])
    with pytest.raises(InvalidArgumentError, match="there is a process set of ranks"):
        bps.add_process_set([0])


def test_a_set_that_was_added_to_a_job_before_is_again_what_it_was_made_of() -> None:
    chosen = bps.ProcessSet([0, 1])
    for members in ([5, 6, 7], [4, 6, 5]):
        with runtime.bound(one := MirroredWorker(OWN, members)):
            bps.add_process_set(chosen)
            one.enter([7, 6, 9])
            assert chosen.ranks == [1]
        assert chosen.ranks == [0, 1]


@pytest.mark.parametrize("members", [None, (5, 6, 8)])
def test_reductions_without_servers_go_over_lanes_of_their_view(members: tuple[int, ...] | None) -> None:
    base = MirroredWorker(OWN, [5, 6, 7, 8])
    worker = CollectiveWorker(base, 1024, members, "world" if members is None else "set1")
    (declared,) = worker.declare([TensorSpec("w", DType.FLOAT32, (8,))])
    memory = PrivateMemory(32)
    for view in ([5, 6, 7, 8], [6, 8, 9], [9, 6]):
        base.enter(view)
        base.lanes.clear()
        worker.push_pull(declared, memory.address, Op.SUM).wait()
        worker.push_pull(declared, memory.address, Op.SUM).wait()
        there = [member for member in view if member in (members or view)]
        assert [view[rank] for rank in base.lanes[-1].ranks] == there
        assert (worker.size, worker.rank) == (len(there), there.index(OWN))
        assert len([lane for lane in base.lanes if lane.name.endswith("w/0")]) == 1, "one for both rounds"


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_averages_are_divided_by_the_ranks_of_their_round(worker: MirroredWorker, factor: float) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), gradient_predivide_factor=factor)
    for members in VIEWS:
        worker.enter(members)
        optimizer.zero_grad()
        x = torch.arange(6.0).reshape(2, 3) + len(members)
        model(x).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad is not None
        torch.testing.assert_close(model.weight.grad, x.sum(0).expand(2, 3))  # what each rank has, and so their mean
        with optimizer.skip_synchronize():
            optimizer.step()


def test_a_view_that_comes_between_backward_and_step_is_not_the_rounds(worker: MirroredWorker) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2000))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.0), gradient_predivide_factor=2.0)
    for _ in range(2):
        worker.enter([5, 6])
        optimizer.zero_grad()
        parameter.sum().backward()
        worker.enter([5, 6, 7, 8])
        optimizer.synchronize()
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad[:1000], torch.ones(1000))


def test_gradients_are_clipped_by_the_root_of_the_ranks_of_their_round(worker: MirroredWorker) -> None:
    parameter = torch.nn.Parameter(torch.zeros(128, 256))
    clipped = bps.Compression.dgc(1.0, momentum=0.5, clip=2.0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.0), compression=clipped)
    for members in VIEWS:
        worker.enter(members)
        optimizer.zero_grad()
        (1000 * parameter.sum()).backward()
        optimizer.synchronize()
        assert parameter.grad is not None
        assert float(parameter.grad.norm()) == pytest.approx(2.0 / len(members) ** 0.5, rel=1e-3)


def test_a_pacer_waits_for_the_go_ahead_of_the_view_in_force(
    worker: MirroredWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing.time, "sleep", lambda _: None)
    pacer = bps.StepPacer(0.0, 0.001)
    for members in VIEWS:
        worker.enter(members)
        worker.lanes.clear()
        pacer.step()
        ranks = [] if len(members) == 1 else [tuple(range(len(members)))]
        assert [lane.ranks for lane in worker.lanes] == ranks
    assert len({lane.name for lane in worker.lanes}) == 1
