"""Two schedulers and an etcd in virtual time, between which the network loses, delays and repeats what it likes, and
which are stopped for any time: there is one history, and members who have heard of a term hear of no lower one."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

import pytest

from byteps_like.control.records.etcd import changelog
from byteps_like.control.records.etcd.changelog import Head
from byteps_like.control.records.etcd.leadership import Holder, Leadership
from byteps_like.control.records.etcd.stored_log import StoredLog
from byteps_like.control.v1 import etcd_rpc_pb2 as rpc
from byteps_like.errors import RefusedError, SystemCallError
from tests.fakes.control.etcd import EtcdInMemory
from tests.fakes.control.virtual_threads import VirtualThreads

T = TypeVar("T")
RUNS = 1000
SECONDS = 25.0
ATTEMPT = 1.0
BASE = "byteps_like/job/"
LEADER, HEAD = f"{BASE}leader".encode(), f"{BASE}head".encode()


@dataclass
class Faults:
    """Of one scheduler's network and process, by chance."""

    chance: random.Random
    cut: list[tuple[float, float]] = field(default_factory=list)
    """From when to when nothing passes."""

    def __post_init__(self) -> None:
        at = self.chance.uniform(0, 10)
        while at < SECONDS:
            length = self.chance.choice([0.3, 1.5, 4, 9]) * self.chance.random()
            self.cut.append((at, at + length))
            at += length + self.chance.uniform(0.5, 10)

    def is_cut(self, now: float) -> bool:
        return any(begin <= now < end for begin, end in self.cut)

    def stop(self) -> float:
        """Of the process, before it sees an answer."""
        return self.chance.uniform(0, 8) if self.chance.random() < 0.01 else 0.0

    def delay(self) -> float:
        """On the way."""
        if self.chance.random() < 0.02:
            return self.chance.uniform(0, 8)
        return self.chance.expovariate(100)


class Network:
    """An EtcdApi of one scheduler: attempts whose answer is late are made again, and may be carried out all the same,
    whenever they come."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world, self._faults = world, faults
        self.rule = Leadership(self, LEADER, lambda: world.threads.now)

    def txn(self, request: rpc.TxnRequest, seconds: float) -> rpc.TxnResponse:
        return self._call(partial(self._world.carry_out, request, self.rule.term), seconds)

    def grant(self, ttl: int, seconds: float) -> tuple[int, int]:
        return self._call(lambda: self._world.etcd.grant(ttl), seconds)

    def keep_alive(self, lease: int, seconds: float) -> int:
        return self._call(lambda: self._world.etcd.keep_alive(lease), seconds)

    def revoke(self, lease: int, seconds: float) -> None:
        self._call(lambda: self._world.etcd.revoke(lease), seconds)

    def await_removal(self, key: bytes, revision: int, seconds: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _call(self, do: Callable[[], T], seconds: float) -> T:
        threads, faults = self._world.threads, self._faults
        deadline = threads.now + seconds
        while True:
            there, back = faults.delay(), faults.delay()
            began = threads.now
            if there > ATTEMPT and not faults.is_cut(began):
                threads.call_later(there, partial(_carry_out, do))
            threads.sleep(min(there, ATTEMPT))
            if there <= ATTEMPT and not faults.is_cut(threads.now):
                answer = do()
                threads.sleep(back)
                if threads.now - began <= ATTEMPT and not faults.is_cut(threads.now):
                    threads.sleep(faults.stop())
                    return answer
            if threads.now >= deadline:
                raise SystemCallError("the etcd is out of reach")
            threads.sleep(0.05)


def _carry_out(do: Callable[[], object]) -> None:
    """What is late comes at last."""
    with suppress(SystemCallError):
        do()


class World:
    """Its etcd, what it has stored, and what a member was told."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.threads = VirtualThreads()
        self.etcd = EtcdInMemory(lambda: self.threads.now)
        self.told: list[tuple[int, bytes]] = []
        """Term and decision, of each that was stored before."""
        self.rules = 0

    def carry_out(self, request: rpc.TxnRequest, term: int) -> rpc.TxnResponse:
        """A request of this term comes to the etcd."""
        before = len(self.etcd.history)
        answer = self.etcd.txn(request)
        for written in self.etcd.history[before:]:
            if written.key == HEAD:
                rules = self.etcd.keys[LEADER].create_revision if LEADER in self.etcd.keys else 0
                assert rules == term, f"a decision of term {term} was stored while term {rules} ruled"
        return answer

    def scheduler(self) -> None:
        """Begins again whenever its rule has ended."""
        faults = Faults(self.chance)
        while self.threads.now < SECONDS:
            rule = Network(self, faults).rule
            try:
                if rule.begin() is None:
                    self.rules += 1
                    self._rule(rule)
            except (SystemCallError, RefusedError):
                pass
            self.threads.sleep(self.chance.uniform(0.1, 1))

    def _rule(self, rule: Leadership) -> None:
        stored = StoredLog(rule, BASE)
        self._check_stored(stored.records)
        renewed = self.threads.now
        for number in range(self.chance.randrange(1, 60)):
            if self.threads.now > renewed + rule.pause:
                renewed = self.threads.now
                rule.renew()
            decision = f"{rule.term}/{number}".encode() + bytes(self.chance.choice([0, 0, 0, 150]))
            stored.append({str(number % 5): decision, "last": decision})
            self.told.append((rule.term, decision))
            self.threads.sleep(self.chance.expovariate(3) + (self.chance.random() < 0.02) * self.chance.uniform(0, 8))
        rule.end()

    def _check_stored(self, records: dict[str, bytes]) -> None:
        """Whoever begins knows the last that anybody was told, or one that was stored after it."""
        if self.told:
            term, told = self.told[-1]
            at, _, number = records["last"].rstrip(b"\0").partition(b"/")
            assert (int(at), int(number)) >= (term, int(told.rstrip(b"\0").partition(b"/")[2]))


def heads(world: World) -> list[Head]:
    """All that there were, in order."""
    return [Head.decode(written.value) for written in world.etcd.history if written.key == HEAD]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_there_is_one_history(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "PIECE", 100)
    monkeypatch.setattr(changelog, "_SLACK_BYTES", 500)
    rules = 0
    for seed in range(part * RUNS // 10, (part + 1) * RUNS // 10):
        world = World(seed)
        world.threads.run(world.scheduler, world.scheduler)
        assert all(a.next < b.next and a.first <= b.first for a, b in pairwise(heads(world))), f"seed {seed}"
        terms = [term for term, _ in world.told]
        assert terms == sorted(terms), f"seed {seed}: told in a term that was over"
        rules += world.rules
    assert rules > 2 * RUNS // 10, "there is nothing to see without changes of the rule"


def test_two_at_once_do_not_both_begin() -> None:
    world = World(0)
    found: list[Holder | None] = []
    calm = Faults(random.Random(1))
    calm.cut = []

    def begin() -> None:
        found.append(Network(world, calm).rule.begin())

    world.threads.run(begin, begin, begin)
    assert found.count(None) == 1
