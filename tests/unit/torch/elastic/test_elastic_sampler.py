"""Each sample is processed once, whoever comes, leaves or dies: a ledger of what is in the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import byteps_like.torch as bps
from byteps_like.torch.elastic import sampler as sampling
from byteps_like.torch.elastic.sampler import ElasticSampler, SamplerSnapshot


@dataclass
class Place:
    """Where the process that is being played stands."""

    rank: int = 0
    size: int = 1
    world: int = 1


class Ranks:
    """Samplers of all ranks in one process: one at a time is asked, and collectives are played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, samples: int, size: int, seed: int) -> None:
        self.at = Place(0, size)
        self.sent: list[object] = []
        monkeypatch.setattr(sampling._runtime, "initialized", lambda: True)
        monkeypatch.setattr(sampling._runtime, "rank", lambda: self.at.rank)
        monkeypatch.setattr(sampling._runtime, "size", lambda: self.at.size)
        monkeypatch.setattr(sampling, "_world", lambda: self.at.world)
        monkeypatch.setattr(sampling, "broadcast_object", self._broadcast)
        monkeypatch.setattr(sampling, "allgather_object", lambda _: self.masks)
        self.samples, self.seed = samples, seed
        self.members = [self.make(rank) for rank in range(size)]
        self.masks: list[bytes] = []

    def _broadcast(self, own: object, root_rank: int) -> object:
        assert root_rank == 0
        if self.at.rank == 0:
            self.sent = [own]
        return self.sent[0]

    def make(self, rank: int) -> ElasticSampler:
        """A new one, of a process that has just joined as `rank`."""
        self.at.rank = rank
        return ElasticSampler(range(self.samples), seed=self.seed)

    def join(self, survivors: list[ElasticSampler], joiners: int) -> None:
        """The next world: `survivors` in their order, then new ones; all synchronize."""
        self.at.world += 1
        self.at.size = len(survivors) + joiners
        self.members = survivors + [self.make(len(survivors) + number) for number in range(joiners)]
        self.sync()

    def sync(self) -> None:
        """On all ranks."""
        self.masks = [(member._base | member._own).tobytes() for member in self.members]
        for rank, member in enumerate(self.members):
            self.at.rank = rank
            member.sync()

    def commit(self) -> list[SamplerSnapshot]:
        """What each rank saves."""
        progress = [member.progress for member in self.members]
        for member in self.members:
            member.hear_progress(progress)
        return [member.snapshot() for member in self.members]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("join"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("die"), st.integers(0, 5), st.integers(0, 1)),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 90), st.integers(1, 4), st.integers(1, 4), EVENTS, st.integers(0, 3))
def test_the_model_has_seen_each_sample_once(samples: int, size: int, batch: int, events: list, seed: int) -> None:
    """A death is in the middle of a step, before or after rank 0 has committed it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ranks = Ranks(monkeypatch, samples, size, seed)
        model: Counter[int] = Counter()
        handed_out: Counter[int] = Counter()
        repeats_allowed, largest = 0, size
        saved, step = ranks.commit(), 0

        def step_of_all(counted: Counter[int]) -> bool:
            nonlocal step
            if step * batch >= len(ranks.members[0]):
                return False
            for member in ranks.members:
                counted.update(member.get_indices(step, batch))
                handed_out.update(member.get_indices(step, batch))
                member.record_batch(step, batch)
            step += 1
            return True

        for kind, number, moment in [*events, ("steps", samples + 1, 0)]:
            members = ranks.members
            if kind == "steps":
                for _ in range(number):
                    if not step_of_all(model):
                        break
                    saved = ranks.commit()
                continue
            if kind != "join" and len(members) == 1:
                continue
            if kind == "join":
                ranks.join(members, number)
            elif kind == "leave":
                gone = number % len(members)
                ranks.join([one for rank, one in enumerate(members) if rank != gone], 0)
            elif kind == "die":
                gone = number % len(members)
                lost: Counter[int] = Counter()
                if step_of_all(lost):
                    repeats_allowed += batch * len(members)
                    if moment == 1 and gone != 0:  # rank 0 has committed the step, others have not
                        saved[0] = ranks.commit()[0]
                        model.update(lost)
                for rank, member in enumerate(members):
                    member.go_back(saved[rank])
                ranks.join([one for rank, one in enumerate(members) if rank != gone], 0)
            step, saved, largest = 0, ranks.commit(), max(largest, len(ranks.members))
        padding = sum(model.values()) - samples
        assert set(model) == set(range(samples)), "none is lost"
        assert 0 <= padding < largest, "only the last steps of the pass are filled up"
        assert sum(handed_out.values()) <= samples + padding + repeats_allowed


def test_a_pass_has_an_order_of_its_own_that_seed_and_pass_decide() -> None:
    first, second = (ElasticSampler(range(20), seed=3) for _ in range(2))
    assert list(first) == list(second) != list(range(20))
    assert sorted(first) == list(range(20))
    second.set_epoch(1)
    assert list(first) != list(second)
    assert list(ElasticSampler(range(20), seed=4)) != list(first)
    assert list(ElasticSampler(range(5), shuffle=False)) == [0, 1, 2, 3, 4]


def test_what_is_recorded_is_not_handed_out_again() -> None:
    sampler = ElasticSampler(range(10))
    order = list(sampler)
    sampler.record_batch(0, 4)
    sampler.record_indices([order[7]])
    assert (sampler.processed_num, sampler.progress) == (5, 4)
    assert list(sampler) == order, "a loader that runs isn't disturbed"
    sampler.reset()
    assert list(sampler) == [index for place, index in enumerate(order) if place >= 4 and place != 7]
    other = ElasticSampler(range(10))
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(sampler) and other.processed_indices == sampler.processed_indices
    assert (sampler.rank, sampler.num_replicas, sampler.remaining_indices) == (0, 1, list(sampler))


def test_an_empty_data_set_has_no_batches() -> None:
    sampler = ElasticSampler([])
    assert (len(sampler), list(sampler), sampler.processed_num, sampler.get_indices(0, 4)) == (0, [], 0, [])
    sampler.record_batch(0, 4)
    sampler.reset()


def test_a_loader_goes_on_after_a_restore() -> None:
    """The life of a sampler in a TorchState, in a world of one."""
    bps.init()
    try:
        data = TensorDataset(torch.arange(12))
        sampler = bps.elastic.ElasticSampler(data)
        state = bps.elastic.TorchState(sampler=sampler)
        state.sync()
        for number, _ in enumerate(DataLoader(data, batch_size=3, sampler=sampler)):
            sampler.record_batch(number, 3)
            if number == 1:
                state.commit()
        assert sampler.processed_num == 12
        state.restore()
        assert sampler.processed_num == 6 and len(sampler) == 12
        state.sync()
        assert len(sampler) == 6
        assert len(list(DataLoader(data, batch_size=3, sampler=sampler))) == 2
    finally:
        bps.shutdown()
