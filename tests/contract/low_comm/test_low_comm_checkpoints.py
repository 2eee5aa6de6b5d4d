"""Checkpoints of training with few synchronizations: what goes on after one is, to the last bit, what would have gone
on, with servers and without; on other numbers of ranks and servers; what is damaged or of others changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch

import byteps_like.torch as bps
from byteps_like.errors import BytePSLikeError, CorruptError, InvalidArgumentError, MismatchError
from byteps_like.store.updates.adam import Adam
from byteps_like.torch.job import runtime
from byteps_like.worker.current import current
from byteps_like.worker.local import LocalWorker
from tests.contract.low_comm.local_training import backward, flat, model_of
from tests.contract.mixed_job import MixedJob, native_worker
from tests.contract.on_runtimes import by_servers
from tests.fakes.native_world import run_native_world

HALF = 7
"""Steps before a checkpoint, in which nothing is due."""

Body = Callable[[int], Any]
Job = Callable[..., list[Any]]


def by_job(body: Body, ranks: int = 2, servers: int = 2, **settings: Any) -> list[Any]:
    job = MixedJob(makers=[native_worker] * ranks, hosts=("",) * servers, **settings)
    try:
        return by_servers([runtime.Runtime(worker) for worker in job.workers], body)
    finally:
        job.close()


def by_collectives(body: Body, ranks: int = 2, **_: Any) -> list[Any]:
    return run_native_world(ranks, lambda _bps, rank, _size: body(rank))


WAYS: dict[str, Job] = {"servers": by_job, "collectives": by_collectives}
CASES: dict[str, dict[str, Any]] = {
    "diloco": {"every": 4},
    "adam outside": {"every": 5, "outer": Adam(lr=0.01), "weight": "tokens**2/steps"},
    "parts under way": {"every": 6, "fragments": 3, "delay": 3, "mix": 0.25},
    "sparseloco": {"every": 3, "fragments": 2, "codec": "sparseloco:chunk=16,keep=3", "outer": bps.AveragedWeights()},
}


class Training:
    """A rank's."""

    def __init__(self, rank: int, lr: float = 0.05, **terms: Any) -> None:
        self.rank, self.model = rank, model_of(seed=rank)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.low = bps.LowComm(self.model, self.inner, **terms)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.inner.zero_grad()
            backward(self.model, self.rank, step)
            self.low.count(1.0 + self.rank)
            self.inner.step()

    def found(self) -> tuple[torch.Tensor, int, tuple[int, ...]]:
        return flat(self.model), self.low.version, self.low.contributors


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for (weights, *others), (expected, *same) in zip(found, wanted, strict=True):
        assert torch.equal(weights, expected)
        assert others == same


def raised(call: Callable[[], Any]) -> BytePSLikeError:
    with pytest.raises(BytePSLikeError) as found:
        call()
    return found.value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_another_job_goes_on_to_the_last_bit(way, case, tmp_path):
    """A checkpoint changes nothing for the job that makes it, and another one goes on as it does."""
    kept: dict[int, Any] = {}

    def in_one_go(rank: int) -> Any:
        one = Training(rank, **CASES[case])
        with one.low:
            one.steps(0, 2 * HALF)
        return one.found()

    def saving(rank: int) -> Any:
        one = Training(rank, **CASES[case])
        with one.low:
            one.steps(0, HALF)
            assert one.low.checkpoint(tmp_path) == HALF // CASES[case]["every"]
            kept[rank] = one.low.state_dict()
            one.steps(HALF, 2 * HALF)
        return one.found()

    def going_on(rank: int, load: Callable[[Training], None]) -> Any:
        one = Training(rank, lr=0.7, **CASES[case])
        load(one)
        with one.low:
            one.steps(HALF, 2 * HALF)
        return one.found()

    wanted = WAYS[way](in_one_go)
    assert not torch.equal(wanted[0][0], flat(model_of(0)))
    assert_same(WAYS[way](saving), wanted)
    by_path = WAYS[way](lambda rank: going_on(rank, lambda one: one.low.restore(tmp_path)), servers=1)
    assert_same(by_path, wanted)
    in_memory = WAYS[way](
        lambda rank: going_on(rank, lambda one: one.low.load_state_dict(kept[rank])), partition_bytes=64
    )
    assert_same(in_memory, wanted)


def test_what_servers_are_owed_goes_on(tmp_path):
    """Changes to them are encoded; what was left out by the checkpoint comes later, also in another job."""
    terms = {"every": 2, "quorum": 0.99, "codec": "topk:ratio=0.25"}

    def going_on(rank: int, first: int, *, restores: bool, saves: bool = False) -> Any:
        one = Training(rank, **terms)
        if restores:
            one.low.restore(tmp_path)
        with one.low:
            one.steps(first, HALF)
            if saves:
                one.low.checkpoint(tmp_path)
            owed = one.low.state_dict()["own"]["rounds"]["residuals"][0]
            one.steps(HALF, 2 * HALF)
        return owed, *one.found()

    wanted = by_job(lambda rank: going_on(rank, 0, restores=False, saves=True))
    found = by_job(lambda rank: going_on(rank, HALF, restores=True))
    assert all(owed.abs().max() > 0 for owed, *_ in wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]) and one[2:] == other[2:]


@pytest.mark.parametrize("ways", [("servers", "collectives"), ("collectives", "servers")])
def test_servers_may_come_and_go(ways, tmp_path):
    before, after = (WAYS[way] for way in ways)
    terms = {"every": 6, "fragments": 3, "delay": 3}

    def body(rank: int, *, restores: bool) -> Any:
        one = Training(rank, **terms)
        with one.low:
            if restores:
                one.low.restore(tmp_path)
            else:
                one.steps(0, HALF)
                one.low.checkpoint(tmp_path)
            there = flat(one.model)
            one.steps(HALF, 2 * HALF)
        return there, flat(one.model), one.low.version

    saved = before(lambda rank: body(rank, restores=False))
    found = after(lambda rank: body(rank, restores=True))
    for (there, end, version), (there_then, end_then, version_then) in zip(found, saved, strict=True):
        assert torch.equal(there, there_then) and version == version_then
        torch.testing.assert_close(end, end_then, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codec", ["", "int8"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (3, 2)])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_may_come_and_go(way, before, after, codec, tmp_path):
    """Whoever is new begins with the common weights, and contributes when the others do."""

    def save(rank: int) -> Any:
        one = Training(rank, every=4, codec=codec)
        with one.low:
            one.steps(0, 4)
            common = flat(one.model)
            one.steps(4, HALF)
            one.low.checkpoint(tmp_path)
            return common, flat(one.model)

    def go_on(rank: int) -> Any:
        one = Training(rank, every=4, codec=codec)
        one.low.restore(tmp_path)
        there = flat(one.model)
        with one.low:
            one.steps(HALF, 8)
        return there, flat(one.model), one.low.version, one.low.contributors

    saved = WAYS[way](save, ranks=before)
    found = WAYS[way](go_on, ranks=after)
    for rank, (there, end, version, contributors) in enumerate(found):
        assert torch.equal(there, saved[rank][1] if rank < before else saved[0][0])
        assert version == 2 and contributors == tuple(range(after))
        assert torch.equal(end, found[0][1])


def test_with_a_quorum_the_common_weights_are_restored_wherever_ranks_are(tmp_path):
    def save(rank: int) -> Any:
        one = Training(rank, every=2, quorum=0.5)
        with one.low:
            one.steps(0, 3 + 4 * rank)
            one.low.checkpoint(tmp_path)
        one.low.checkpoint(tmp_path / "end")
        return one.low.version, flat(one.model)

    def go_on(rank: int) -> Any:
        one = Training(rank, every=2, quorum=0.5)
        one.low.restore(tmp_path / "end")
        there = one.low.version, flat(one.model)
        one.low.restore(tmp_path)
        with one.low:
            one.steps(3 + 4 * rank, 9)
        return there, flat(one.model)

    saved = by_job(save)
    found = by_job(go_on, servers=1)
    for (version, weights), ((there, restored), _) in zip(saved, found, strict=True):
        assert there == version and torch.equal(restored, weights)
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_damaged_or_of_others_changes_nothing(way, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"

    def body(rank: int) -> None:
        one = Training(rank, every=2)
        with one.low:
            one.steps(0, 3)
            one.low.checkpoint(good)
            one.low.checkpoint(bad)
            one.steps(3, 4)
        bps.barrier()
        before = flat(one.model)
        if rank == 0:
            damage(next(bad.glob("part-*1.bin")))
        bps.barrier()
        assert isinstance(raised(lambda: one.low.restore(bad)), CorruptError)
        assert "there is no checkpoint" in str(raised(lambda: one.low.restore(tmp_path / "none")))
        for terms, words in OTHERS:
            other = Training(rank, **{"every": 2, **terms})
            error = raised(lambda low=other.low: low.restore(good))
            assert isinstance(error, MismatchError), error
            assert words in str(error)
        adam = bps.LowComm(one.model, torch.optim.Adam(one.model.parameters()), every=2)
        assert "SGD" in str(raised(lambda: adam.restore(good)))
        assert isinstance(raised(lambda: one.low.load_state_dict({})), InvalidArgumentError)
        assert isinstance(raised(lambda: one.low.load_state_dict({**one.low.state_dict(), "own": {}})),
                          InvalidArgumentError)  # fmt: skip
        assert torch.equal(flat(one.model), before)
        one.low.restore(good)
        with one.low:
            one.steps(3, 4)
        assert torch.equal(flat(one.model), before)

    WAYS[way](body)


OTHERS = [
    ({"fragments": 2}, "shape [26]"),
    ({"outer": Adam()}, "adam"),
    ({"codec": "int8"}, "codec"),
]
"""Terms that the checkpoint was not made with, and what is said of them."""


def damage(part: Path) -> None:
    """Of a rank's own, the last byte but four."""
    whole = part.read_bytes()
    part.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])


def test_a_store_s_checkpoint_is_of_another_kind(tmp_path):
    def body(rank: int) -> None:
        one = Training(rank, every=2)
        one.low._opened()
        values = {f"fragment.{number}": value for number, value in enumerate(one.low._rounds.values)}
        store = bps.Store("other", values, update=bps.LowComm(one.model, one.inner)._outer, worker=current())
        store.checkpoint(tmp_path)
        error = raised(lambda: one.low.restore(tmp_path))
        assert isinstance(error, MismatchError) and "another kind" in str(error)
        assert isinstance(raised(lambda: one.low.checkpoint(tmp_path)), InvalidArgumentError)

    by_job(body)


def test_what_can_not_be_saved_is_said_on_all_ranks(tmp_path):
    def body(rank: int) -> None:
        one = Training(rank, every=2)
        if rank == 1:
            one.inner.param_groups[0]["strange"] = object()
        error = raised(lambda: one.low.checkpoint(tmp_path))
        assert isinstance(error, InvalidArgumentError) and "object can't be saved" in str(error)

    by_collectives(body)


def test_who_is_alone_can_save_too(tmp_path):
    with runtime.bound(LocalWorker()):
        one = Training(0, every=3)
        with one.low:
            one.steps(0, HALF)
            one.low.checkpoint(tmp_path)
            one.steps(HALF, 9)
        other = Training(0, every=3)
        other.low.restore(tmp_path)
        with other.low:
            other.steps(HALF, 9)
        assert torch.equal(flat(one.model), flat(other.model))
