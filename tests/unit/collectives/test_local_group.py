"""A group of one: what it sends itself arrives, whichever of the two calls comes first."""

from __future__ import annotations

import ctypes
import threading

import pytest

from byteps_like.collectives.api import CallOptions
from byteps_like.errors import DeadlineError, MismatchError
from byteps_like.worker.local_group import LocalGroup


def send(group: LocalGroup, text: bytes, tag: int = 0) -> None:
    group.send(ctypes.addressof(ctypes.create_string_buffer(text)), len(text), 0, tag).wait()


def test_receives_before_and_after_their_sends() -> None:
    group = LocalGroup("one")
    places = [ctypes.create_string_buffer(3) for _ in range(4)]
    early = [group.receive(ctypes.addressof(place), 3, peer, 7) for place, peer in zip(places, (0, None), strict=False)]
    ended: list[int] = []
    early[1].on_done(lambda: ended.append(1))
    assert not early[0].done()
    for text in (b"abc", b"def", b"ghi"):
        send(group, text, 7)
    assert ended == [1]
    late = group.receive(ctypes.addressof(places[2]), 3, 0, 7)
    late.on_done(lambda: ended.append(2))
    for operation in (*early, late):
        operation.wait()
    assert [place.raw for place in places[:3]] == [b"abc", b"def", b"ghi"] and ended == [1, 2]


def test_a_thread_that_waits_is_woken_by_the_send() -> None:
    group, place = LocalGroup("one"), ctypes.create_string_buffer(2)
    operation = group.receive(ctypes.addressof(place), 2, 0)
    threading.Timer(0.02, send, (group, b"ok")).start()
    operation.wait(10)
    assert place.raw == b"ok"


def test_lengths_and_deadlines() -> None:
    group, place = LocalGroup("one"), ctypes.create_string_buffer(2)
    operation = group.receive(ctypes.addressof(place), 2, 0)
    send(group, b"long")
    with pytest.raises(MismatchError, match="4 bytes were sent"):
        operation.wait()
    assert isinstance(operation.error(), MismatchError)
    with pytest.raises(DeadlineError, match=r"0\.01 s"):
        group.receive(ctypes.addressof(place), 2, 0, options=CallOptions(timeout=0.01)).wait()
    following = group.receive(ctypes.addressof(place), 2, 0)
    send(group, b"ok")
    following.wait()
    assert place.raw == b"ok"
