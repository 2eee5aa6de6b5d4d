"""Whatever is said at the door, in any order, by whoever has the job's key: it stays open, keeps nothing of those who
are gone, and workers who do as they should get their sums."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import psutil
import pytest
from door_client import HELLO, client, receive, say_hello, send, send_frame
from fake_store import FIRST, SECRET, world_of
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from byteps_like.dtypes import DType, Op
from byteps_like.portable.dealer import Dealer
from byteps_like.server.door import Door, DoorConfig, native_links
from byteps_like.server.native import NativeServer
from byteps_like.wire.door import DoorKind, Envelope, decode_envelope
from byteps_like.wire.frame import FrameFlag, FrameType, Header, decode_header, seal

SHARDS, COUNT, SLOTS = 2, 100, 3
SLOT = st.integers(0, SLOTS - 1)
MEMBER = st.integers(FIRST - 1, FIRST + 2)
KEY = st.integers(0, 3)
_names = itertools.count()


def contribution(member: int, key: int) -> np.ndarray:
    """int32[COUNT]: what a member brings to a key."""
    return np.arange(COUNT, dtype=np.int32) * (member + 1) + key


def push(member: int, key: int, epoch: int) -> tuple[Header, bytes]:
    """All of it in one frame."""
    payload = contribution(member, key).tobytes()
    return Header(FrameType.PUSH, DType.INT32, Op.SUM, view=epoch, member=member, key=key, total=len(payload)), payload


class Guests(RuleBasedStateMachine):
    """Three connections that say what they like to a native server's door."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[object] = []
        threading.excepthook = self.failed.append
        logging.disable()  # or pytest keeps what is logged: errors, whose frames hold sessions
        url = f"inproc://guests-{os.getpid()}-{next(_names)}"
        self.server = NativeServer("job", SECRET, [url], shards=SHARDS, on_event=lambda *_: None)
        self.door = Door(DoorConfig("tcp://127.0.0.1:*", "job", SECRET, SHARDS, native_links(url, "job", SECRET)))
        self.epoch = 0
        self.spoiled = False
        self.stack = ExitStack()
        self.guests: list[tuple[ExitStack, Dealer]] = []
        self.next_epoch()
        self.descriptors = psutil.Process().num_fds()
        self.guests = [self._come() for _ in range(SLOTS)]

    def _come(self) -> tuple[ExitStack, Dealer]:
        stack = ExitStack()
        return stack, stack.enter_context(client(self.door.url))

    def _say(self, slot: int, *parts: bytes) -> None:
        send(self.guests[slot][1], *parts)

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        world = world_of(self.epoch, 2)
        self.server.set_view(world, 0, 5.0, 60.0)
        self.door.set_view(world, 0)

    @rule(slot=SLOT, member=MEMBER, ahead=st.sampled_from([0, 0, 0, 0, -1, 1]), size=st.sampled_from([2, 2, 2, 3]))
    def says_hello(self, slot: int, member: int, ahead: int, size: int) -> None:
        hello = replace(HELLO, member=member, view=self.epoch + ahead, world_size=size)
        self._say(slot, Envelope(DoorKind.HELLO).encode(), hello.encode())

    @rule(slot=SLOT, member=MEMBER, key=KEY, shard=st.sampled_from([0, 1, 1, 9]))
    def pushes(self, slot: int, member: int, key: int, shard: int) -> None:
        header, payload = push(member, key, self.epoch)
        send_frame(self.guests[slot][1], header, payload, shard)

    @rule(
        slot=SLOT, member=MEMBER, kind=st.sampled_from(FrameType), flags=st.sampled_from([0, 0, *FrameFlag]),
        length=st.sampled_from([0, 4, 400, (1 << 20) + 4]), change=st.dictionaries(
            st.sampled_from(["total", "offset", "round", "key", "aux", "root"]), st.integers(0, 2**16)
        ),
    )  # fmt: skip
    def says_another_frame(
        self, slot: int, member: int, kind: FrameType, flags: int, length: int, change: dict[str, int]
    ) -> None:
        """One that a shard may take for the end of the job."""
        self.spoiled = True
        header = Header(kind, flags=flags, view=self.epoch, member=member, total=400)
        send_frame(self.guests[slot][1], replace(header, **change), bytes(length))

    @rule(slot=SLOT, member=MEMBER, place=st.integers(0, 463), change=st.integers(1, 255))
    def says_a_damaged_frame(self, slot: int, member: int, place: int, change: int) -> None:
        header, payload = push(member, 0, self.epoch)
        whole = bytearray(seal(header, payload) + payload)
        whole[place] ^= change
        self._say(slot, Envelope(DoorKind.FRAME).encode(), bytes(whole[:64]), bytes(whole[64:]))

    @rule(slot=SLOT, parts=st.lists(st.binary(max_size=100), min_size=1, max_size=4))
    def says_anything(self, slot: int, parts: list[bytes]) -> None:
        self._say(slot, *parts)

    @rule(
        slot=SLOT, kind=st.sampled_from(DoorKind), version=st.sampled_from([2, 2, 9]),
        parts=st.lists(st.binary(max_size=100), max_size=3),
    )  # fmt: skip
    def says_any_kind(self, slot: int, kind: DoorKind, version: int, parts: list[bytes]) -> None:
        self._say(slot, Envelope(kind, version=version).encode(), *parts)

    @rule(slot=SLOT)
    def comes_again(self, slot: int) -> None:
        self.guests[slot][0].close()
        self.guests[slot] = self._come()

    @rule(slot=SLOT)
    def listens(self, slot: int) -> None:
        """Results are sums, whoever asked for them."""
        dealer = self.guests[slot][1]
        while dealer.socket.poll(1) and (parts := dealer.receive()) is not None:
            if decode_envelope(parts).kind != DoorKind.FRAME or self.spoiled:
                continue
            header = decode_header(parts[1])
            if header.type == FrameType.RESULT:
                assert bytes(parts[2]) == expected(header.key)[header.offset : header.offset + header.length]

    def _workers_get_their_sum(self) -> None:
        with client(self.door.url) as first, client(self.door.url) as second:
            workers = (first, second)
            for rank, dealer in enumerate(workers):
                say_hello(dealer, replace(HELLO, member=FIRST + rank, view=self.epoch))
            for shard, (rank, dealer) in itertools.product(range(SHARDS), enumerate(workers)):
                send_frame(dealer, *push(FIRST + rank, 100 + shard, self.epoch), shard)
            for dealer in workers:
                for _ in range(SHARDS):
                    assert sum_of(dealer) in {expected(100), expected(101)}
                send(dealer, Envelope(DoorKind.BYE).encode())
            self._nothing_is_left()

    def _nothing_is_left(self) -> None:
        deadline = time.monotonic() + 10
        while self.door._sessions or self.door._link_of:
            assert time.monotonic() < deadline, "sessions of workers who have left"
            time.sleep(0.01)

    def teardown(self) -> None:
        try:
            for stack, _ in self.guests:
                stack.close()
            if self.spoiled:
                self.next_epoch()
            self._workers_get_their_sum()
            gc.collect()
            deadline = time.monotonic() + 10
            while psutil.Process().num_fds() > self.descriptors:
                assert time.monotonic() < deadline, "descriptors of those who are gone"
                time.sleep(0.01)
            assert self.door._thread.is_alive()
        finally:
            self.door.stop()
            self.server.stop()
            threading.excepthook = threading.__excepthook__
            logging.disable(logging.NOTSET)
        assert not self.failed, self.failed


def expected(key: int) -> bytes:
    """The sum of both workers."""
    return (contribution(FIRST, key) + contribution(FIRST + 1, key)).tobytes()


def sum_of(dealer: Dealer) -> bytes:
    """All of the next result; it may come in pieces."""
    result = b""
    while len(result) < 4 * COUNT:
        parts = receive(dealer, DoorKind.FRAME)
        assert decode_header(parts[1]).type == FrameType.RESULT
        result += bytes(parts[2])
    return result


TestGuests = pytest.mark.slow(Guests.TestCase)
# What fails is shown as it was: to shrink it, who waits for the end of a session would wait a thousand times.
TestGuests.settings = settings(
    max_examples=30, stateful_step_count=20, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
