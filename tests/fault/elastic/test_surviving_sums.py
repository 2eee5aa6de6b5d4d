"""All-reduces whose ranks die in the middle: what the others get is the sum of those that are said to be in it, the
same on all of them, and nobody who lives is missing. Over real links, with one thread for each rank."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.errors import PeerLostError
from byteps_like.worker.api import Declared, Partition, TensorSpec
from byteps_like.worker.engine.step_log import StepLog
from byteps_like.worker.standing import Standing
from byteps_like.worker.surviving import PartReduction, SurvivingSums
from tests.contract.mixed_job import in_threads

RANKS, ROUNDS = 4, 6
SIZES = (1, 1_000, 200_000)
PATIENCE = 10.0


class Died(Exception):
    """This rank stops here."""


class Rank:
    """One of the world. It brings 2**rank, times the round from 1."""

    def __init__(self, number: int, communicator: Communicator) -> None:
        self.number, self.communicator = number, communicator
        self.log = StepLog()
        standing = Standing(number, tuple(range(1, RANKS + 1)), number, RANKS)
        self.sums = SurvivingSums(communicator, standing, self.log, "world", PATIENCE)
        self.parts = [(Partition(key, 0, 8 * size, 0, 0), np.zeros(size, np.int64)) for key, size in enumerate(SIZES)]

    def begin(self, number: int, place: int) -> Any:
        part, values = self.parts[place]
        values[:] = (1 << self.number) * (number + 1)
        spec = TensorSpec(f"t{place}", DType.INT64, (len(values),))
        declared = Declared(spec, place, (part,))
        reduction = PartReduction(declared, part, values.ctypes.data, Op.SUM, CallOptions())
        return self.sums.begin(f"world/t{place}/0", reduction)

    def run(self, order: list[list[int]], dies: tuple[int, int] | None) -> list[list[set[int]]]:
        """The ranks in the result of each partition in each round. `dies`: in that round, after so many calls."""
        found = []
        for number in range(ROUNDS):
            calls: list[Any] = [None] * len(SIZES)
            for count, place in enumerate(order[number]):
                if dies == (number, count):
                    raise Died
                calls[place] = self.begin(number, place)
            for place in reversed(order[number]):
                calls[place].wait(60)
            found.append([self.members(number, values) for _, values in self.parts])
            self.log.end_step()
        return found

    def members(self, number: int, values: np.ndarray) -> set[int]:
        assert (values == values[0]).all() and values[0] % (number + 1) == 0
        bits = int(values[0]) // (number + 1)
        return {rank for rank in range(RANKS) if bits >> rank & 1}

    def said(self) -> list[list[set[int]]]:
        """Who is said to be in each."""
        lacks = [self.log.lacks(number) for number in range(ROUNDS)]
        return [
            [set(range(RANKS)) - {one.rank for one in lacks[number] if one.tensor == f"t{place}"}
             for place in range(len(SIZES))] for number in range(ROUNDS)
        ]  # fmt: skip

    def hear(self, rank: int) -> None:
        self.communicator.lose(rank, PeerLostError(f"rank {rank} was killed"))
        self.sums.hear(rank)


def world(**settings: Any) -> list[Rank]:
    secret = secrets.token_bytes(32)
    configs = [Config.from_env({}, role="worker", rank=rank, world_size=RANKS, **settings) for rank in range(RANKS)]
    made = [Communicator(config, "surviving", secret) for config in configs]
    for rank, one in enumerate(made):
        one.join(1, rank, [other.own for other in made])
    return [Rank(rank, one) for rank, one in enumerate(made)]


def survive(seed: int, deaths: int, **settings: Any) -> None:
    random = Random(seed)
    ranks = world(**settings)
    victims = random.sample(range(RANKS), deaths)
    # After the first round: a host's lowest rank gives the others the memory that they share.
    dies = {rank: (random.randrange(1, ROUNDS), random.randrange(len(SIZES))) for rank in victims}
    told: list[int] = []
    changed = threading.Condition()

    def watch(one: Rank) -> None:
        """Hears of all deaths in one order, each a little later."""
        own = Random(seed * RANKS + one.number)
        for count in range(deaths):
            with changed:
                changed.wait_for(lambda count=count: len(told) > count, 60)
            time.sleep(own.choice([0, 0, 0.001, 0.02]))
            if one.number in told:
                return
            one.hear(told[count])

    def run(one: Rank) -> Any:
        order = [random.sample(range(len(SIZES)), len(SIZES)) for _ in range(ROUNDS)]
        try:
            return one.run(order, dies.get(one.number))
        except Died:
            time.sleep(random.choice([0, 0.001, 0.01]))
            if random.random() < 0.5:
                one.communicator.close()
            with changed:
                told.append(one.number)
                changed.notify_all()
            return None

    watchers = [threading.Thread(target=watch, args=(one,)) for one in ranks]
    for watcher in watchers:
        watcher.start()
    found = in_threads([lambda one=one: run(one) for one in ranks])
    for watcher in watchers:
        watcher.join()
    living = [one for one in ranks if one.number not in victims]
    first = found[living[0].number]
    for one in living:
        assert found[one.number] == first, f"seed {seed}: results of ranks differ"
        assert one.said() == first, f"seed {seed}: rank {one.number} says who is in them, and they are not"
    for results in first:
        for members in results:
            assert {one.number for one in living} <= members
    for one in ranks:
        one.communicator.close()


@pytest.mark.parametrize("deaths", [0, 1, 2, 3])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_others_finish(transport, deaths):
    for seed in range(1 if deaths == 0 else 25):
        survive(100 * deaths + seed, deaths, transport=transport)


def when_rank_0_is_gone(body: Callable[[Rank], None]) -> None:
    """After a reduction of all, and in another one, rank 0 goes without a word of the scheduler."""
    ranks = world()

    def run(one: Rank) -> None:
        one.begin(0, 1).wait(60)
        if one.number != 0:
            body(one)
            return
        time.sleep(0.1)
        one.communicator.close()

    in_threads([lambda one=one: run(one) for one in ranks])
    for one in ranks:
        one.communicator.close()


def test_a_failure_that_the_scheduler_does_not_explain_is_raised_after_a_while():
    def body(one: Rank) -> None:
        one.sums._patience = 0.5
        call = one.begin(1, 1)
        with pytest.raises(PeerLostError, match="rank 0"):
            call.wait(60)
        assert call.done()

    when_rank_0_is_gone(body)


def test_the_end_of_the_job_is_what_is_raised():
    def body(one: Rank) -> None:
        threading.Timer(0.3, one.sums.fail, (PeerLostError("worker 7 has died: too few are left"),)).start()
        with pytest.raises(PeerLostError, match="too few are left"):
            one.begin(1, 1).wait(60)

    when_rank_0_is_gone(body)


def test_a_rank_dies_while_some_have_cut_a_tensor_anew():
    ranks = world()
    in_threads([lambda one=one: one.begin(0, 0).wait(60) for one in ranks])

    def cut_and_begin(one: Rank) -> Any:
        one.parts[0] = Partition(0, 0, 8 * 9, 0, 0), np.zeros(9, np.int64)
        return one.begin(1, 0)

    early, *late, victim = ranks
    calls = [cut_and_begin(early)]
    victim.communicator.close()
    for one in (early, *late):
        one.hear(victim.number)
    calls += [cut_and_begin(one) for one in late]
    for one, call in zip((early, *late), calls, strict=True):
        call.wait(60)
        assert one.members(1, one.parts[0][1]) == set(range(RANKS)) - {victim.number}
    for one in ranks:
        one.communicator.close()
