"""The portable door on the wire: who gets in, who doesn't and why, and what passes through."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import psutil
import pytest
import zmq
from door_client import HELLO, client, receive, refusal, say_hello, send, send_frame
from fake_store import FIRST, INCARNATION, SECRET, SERVER, FakeStore, door_to, world_of

from byteps_like.control.calls.door_keys import door_keys
from byteps_like.errors import CapacityError, CorruptError, RefusedError, ShutdownError
from byteps_like.portable.dealer import Dealer, Trouble
from byteps_like.server import door_session
from byteps_like.server.door_session import Unanswered
from byteps_like.wire.door import DoorKind, Envelope, Welcome, decode_envelope, decode_welcome
from byteps_like.wire.frame import NACKED_ROWS, FrameFlag, FrameType, Header, decode_header, seal
from byteps_like.wire.note import Applied

PUSH = Header(FrameType.PUSH, view=1, member=FIRST, key=1, total=8)


def test_welcome_says_what_the_server_is():
    with door_to(FakeStore(2), FakeStore(2)) as door, client(door.url) as dealer:
        assert say_hello(dealer) == Welcome(1, 2, door_session.SEGMENT, door_session.WINDOW)


def test_frames_pass_both_ways_to_their_shard():
    stores = FakeStore(1), FakeStore(1)
    with door_to(*stores) as door, client(door.url) as dealer:
        say_hello(dealer, replace(HELLO, world_size=1))
        send_frame(dealer, PUSH, bytes(range(8)), shard=1)
        parts = receive(dealer, DoorKind.FRAME)
        header = decode_header(parts[1])
        assert (decode_envelope(parts).shard, header.type, header.key) == (1, FrameType.RESULT, 1)
        assert not stores[0].frames
        assert [each.key for each in stores[1].frames] == [1]


@pytest.mark.parametrize(
    ("hello", "names"),
    [
        (replace(HELLO, view=0), "epoch 0 is not this server's 1"),
        (replace(HELLO, job="other"), "job 'other'"),
        (replace(HELLO, world_size=3), "world size 3"),
        (replace(HELLO, member=FIRST + 2), f"no member {FIRST + 2} among the workers of epoch 1"),
        (replace(HELLO, server=SERVER + 1), "you have reached server 0"),
        (replace(HELLO, incarnation=bytes(16)), "incarnation"),
        (replace(HELLO, protocol=9), "protocol version 9"),
    ],
)
def test_a_wrong_hello_is_refused_by_name(hello, names, caplog):
    with door_to(FakeStore(2)) as door, client(door.url) as dealer, caplog.at_level(logging.WARNING):
        dealer.send(Envelope(DoorKind.HELLO).encode(), hello.encode())
        error = refusal(dealer)
    assert isinstance(error, RefusedError)
    assert names in str(error)
    assert names in caplog.text


def test_an_early_hello_waits_for_its_epoch():
    with door_to(FakeStore(2)) as door, client(door.url) as dealer:
        dealer.send(Envelope(DoorKind.HELLO).encode(), replace(HELLO, view=2).encode())
        assert not dealer.socket.poll(100)
        door.set_view(world_of(2, 2), 0)
        assert decode_welcome(receive(dealer, DoorKind.WELCOME)[1]).view == 2


def test_an_epoch_that_never_comes_is_refused(monkeypatch):
    monkeypatch.setattr("byteps_like.server.door.EARLY_SECONDS", 0.1)
    with door_to(FakeStore(2)) as door, client(door.url) as dealer:
        dealer.send(Envelope(DoorKind.HELLO).encode(), replace(HELLO, view=7).encode())
        assert "epoch 7" in str(refusal(dealer))


def test_one_hello_per_connection_and_nothing_is_left_of_more():
    """A hundred HELLOs under both ranks: of all links that were opened none is left, and no descriptor."""
    store, opened = FakeStore(2), []
    store.open_link = lambda *which, open_link=store.open_link: opened.append(open_link(*which)) or opened[-1]
    with door_to(store, store) as door, client(door.url) as dealer:
        say_hello(dealer)
        before = psutil.Process().num_fds()
        for number in range(100):
            hello = replace(HELLO, member=FIRST + (number + 1) % 2, view=1 + number % 3 // 2)
            send(dealer, Envelope(DoorKind.HELLO).encode(), hello.encode())
        assert "second HELLO" in str(refusal(dealer))
        # Answered after all before it.
        send(dealer, Envelope(DoorKind.BYE, version=9).encode())
        assert any("door version 9" in str(refusal(dealer)) for _ in range(101))
        dealer.send(Envelope(DoorKind.BYE).encode())
        deadline = time.monotonic() + 5
        while not all(link.closed for link in opened) or door._sessions:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(opened) > 4 and not door._link_of
        assert psutil.Process().num_fds() <= before


def test_early_hellos_share_a_timer(monkeypatch):
    monkeypatch.setattr("byteps_like.server.door.EARLY_SECONDS", 0.3)
    with door_to(FakeStore(2)) as door, ExitStack() as stack:
        dealers = [stack.enter_context(client(door.url)) for _ in range(4)]
        for number in range(40):
            early = replace(HELLO, view=7 + number)
            dealers[number % 4].send(Envelope(DoorKind.HELLO).encode(), early.encode())
        for dealer in dealers:
            assert "second HELLO" in str(refusal(dealer))
        assert len(door._timers) <= 2
        late = stack.enter_context(client(door.url))
        late.send(Envelope(DoorKind.HELLO).encode(), replace(HELLO, view=9).encode())
        assert "epoch 9 did not begin" in str(refusal(late))


def test_the_end_of_an_epoch_ends_its_sessions():
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer)
        link = store.links[0]
        door.set_view(world_of(2, 2), 0)
        assert isinstance(refusal(dealer), ShutdownError)
        assert link.closed


def test_another_door_version_is_refused_by_name():
    with door_to(FakeStore(2)) as door, client(door.url) as dealer:
        dealer.send(Envelope(DoorKind.HELLO, version=9).encode(), b"whatever that is")
        assert "door version 9" in str(refusal(dealer))


@pytest.mark.parametrize(
    ("header", "payload", "shard", "names"),
    [
        (replace(PUSH, member=FIRST + 1), b"", 0, f"member {FIRST + 1} in the session of member {FIRST}"),
        (PUSH, b"", 5, "shard 5"),
        (replace(PUSH, flags=int(FrameFlag.BY_REFERENCE)), b"", 0, "can't pass"),
        (Header(FrameType.REGION, view=1, member=FIRST), b"", 0, "can't pass"),
        (replace(PUSH, flags=int(FrameFlag.ENCODED)), b"", 0, "encoded rounds are not supported by portable workers"),
        (
            Header(FrameType.CODEC, view=1, member=FIRST),
            b"onebit:block=1024",
            0,
            "encoded rounds are not supported by portable workers",
        ),
        (replace(PUSH, total=1 << 22), bytes((1 << 20) + 1), 0, "segment"),
    ],
)
def test_what_can_not_pass_ends_the_session(header, payload, shard, names):
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer)
        send_frame(dealer, header, payload, shard)
        error = refusal(dealer)
        assert isinstance(error, CorruptError)
        assert names in str(error)
        assert not store.links
        send_frame(dealer, PUSH)
        assert "HELLO comes first" in str(refusal(dealer))


def test_a_damaged_payload_ends_the_session():
    with door_to(FakeStore(2)) as door, client(door.url) as dealer:
        say_hello(dealer)
        dealer.send(Envelope(DoorKind.FRAME).encode(), seal(PUSH, b"12345678"), b"12345679")
        assert "checksum" in str(refusal(dealer))


def test_a_stale_frame_is_dropped():
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer)
        send_frame(dealer, replace(PUSH, view=0), b"12345678")
        send_frame(dealer, replace(PUSH, offset=1 << 40, total=0, flags=1), b"")  # answered: all before was read
        refusal(dealer)
        assert not store.frames


def test_who_pushes_too_far_ahead_is_refused(monkeypatch):
    monkeypatch.setattr(door_session, "WINDOW", 1000)
    monkeypatch.setattr(door_session, "SEGMENT", 1000)
    with door_to(FakeStore(2)) as door, client(door.url) as dealer:
        say_hello(dealer)
        for key in range(3):
            send_frame(dealer, replace(PUSH, key=key, total=1000), bytes(1000))
        assert isinstance(refusal(dealer), CapacityError)


SPEC = Header(FrameType.SPEC, view=1, member=FIRST, key=1, total=1000, offset=1)
APPLIED = Header(FrameType.APPLIED, key=1, total=1000)


def pushed(unanswered: Unanswered, key: int, nbytes: int, *, noted: bool = False) -> int:
    """What counts after a segment of so many bytes."""
    flags, length = (int(FrameFlag.NOTED), nbytes + 32) if noted else (0, nbytes)
    unanswered.pushed(0, replace(PUSH, key=key, total=1000, flags=flags, length=length))
    return unanswered.nbytes


def test_of_each_store_key_one_contribution_may_be_unanswered():
    """Its answer may depend on other ranks, so it must not keep those to other keys back."""
    unanswered = Unanswered()
    for key in range(3):
        unanswered.pushed(0, replace(SPEC, key=key))
        assert pushed(unanswered, key, 400, noted=True) == pushed(unanswered, key, 600) == 0
    assert pushed(unanswered, 1, 300, noted=True) == 300
    assert pushed(unanswered, 2, 1000, noted=True) == 1300
    for applied, left in ((Applied.HELD, 1300), (Applied.COUNTED, 1000), (Applied.LATE, 1000)):
        unanswered.answered(0, replace(APPLIED, aux=applied))
        assert unanswered.nbytes == left
    unanswered.answered(0, Header(FrameType.RESULT, key=2, length=999))
    unanswered.answered(0, Header(FrameType.VALUE, key=2, length=999))
    unanswered.answered(1, replace(APPLIED, key=2))
    assert unanswered.nbytes == 1000, "of another shard, or no answer"
    unanswered.answered(0, replace(APPLIED, key=2))
    assert unanswered.nbytes == 0


def test_of_a_table_the_largest_contribution_may_be_unanswered():
    """And one that is refused comes again."""
    unanswered = Unanswered()
    unanswered.pushed(0, replace(SPEC, total=8))
    rows = replace(PUSH, type=FrameType.ROWS, key=1)
    for nbytes, excess in ((400, 0), (1000, 400), (100, 500)):
        unanswered.pushed(0, replace(rows, total=nbytes, flags=int(FrameFlag.NOTED), length=nbytes + 32))
        assert unanswered.nbytes == excess
    unanswered.answered(0, replace(APPLIED, total=400))
    assert unanswered.nbytes == 100
    unanswered.answered(0, Header(FrameType.NACK, key=1, total=NACKED_ROWS))
    unanswered.pushed(0, replace(rows, total=1000, length=1000))
    assert unanswered.nbytes == 0


def test_a_first_value_is_no_contribution():
    unanswered = Unanswered()
    unanswered.pushed(0, SPEC)
    pushed(unanswered, 1, 1000, noted=True)
    unanswered.pushed(0, SPEC)
    assert pushed(unanswered, 1, 1000, noted=True) == 0
    assert pushed(unanswered, 1, 8, noted=True) == 8


def test_rounds_count_whatever_store_keys_do():
    unanswered = Unanswered()
    unanswered.pushed(0, SPEC)
    assert pushed(unanswered, 7, 1000) == 1000
    unanswered.answered(0, replace(APPLIED, key=7))
    assert unanswered.nbytes == 1000
    unanswered.answered(0, Header(FrameType.RESULT, key=7, length=600))
    assert unanswered.nbytes == 400


def test_frames_of_store_keys_pass():
    store = FakeStore(1)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer, replace(HELLO, world_size=1))
        for header, payload in ((SPEC, b"policy asp"), (replace(SPEC, type=FrameType.PULL, offset=0), b"")):
            send_frame(dealer, header, payload)
        send_frame(dealer, PUSH, bytes(8))
        receive(dealer, DoorKind.FRAME)
    assert [each.type for each in store.frames] == [FrameType.SPEC, FrameType.PULL, FrameType.PUSH]


VALUES, MEGABYTE = 40, 1 << 20


def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_like.server.door_socket._SEND_QUEUE", 2)
    monkeypatch.setattr("byteps_like.portable.dealer._RECEIVE_QUEUE", 2)


def value(key: int, nbytes: int) -> Header:
    return Header(FrameType.VALUE, view=1, member=FIRST, key=key, total=nbytes)


def give_values(store: FakeStore) -> None:
    """More than sockets and queues hold."""
    for number in range(VALUES):
        store.links[0].give(value(number, MEGABYTE), bytes(MEGABYTE))


def test_who_reads_slowly_gets_all_in_order_and_its_links_wait_meanwhile(monkeypatch):
    short_queues(monkeypatch)
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer)
        give_values(store)
        until(lambda: [session.paused for session in door._sessions.values()] == [True])
        store.links[0].give(value(VALUES, 4), b"last")
        assert dealer.socket.poll(5000)
        assert store.links[0].inbox[-1][1] == b"last", "the link is not read"
        keys = [decode_header(receive(dealer, DoorKind.FRAME)[1]).key for _ in range(VALUES + 1)]
        assert keys == list(range(VALUES + 1))
        until(lambda: [session.paused for session in door._sessions.values()] == [False])


def test_who_takes_nothing_at_all_is_refused_in_the_end(monkeypatch):
    short_queues(monkeypatch)
    monkeypatch.setattr("byteps_like.server.door.PATIENCE_SECONDS", 0.5)
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer)
        link = store.links[0]
        give_values(store)
        until(lambda: link.closed)
        assert not door._sessions
        assert "rank 0 has taken nothing for 0.5 s" in str(refusal(dealer))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_connection_replaces_the_first():
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as first, client(door.url) as second:
        say_hello(first)
        link = store.links[0]
        say_hello(second)
        assert "another connection" in str(refusal(first))
        assert link.closed
        assert store.links[0] is not link


def test_goodbye_and_bye_end_a_session_quietly(caplog):
    store = FakeStore(2)
    with door_to(store) as door, client(door.url) as dealer:
        say_hello(dealer)
        send_frame(dealer, Header(FrameType.GOODBYE, view=1, member=FIRST))
        dealer.send(Envelope(DoorKind.BYE).encode())
        say_hello(dealer, replace(HELLO, member=FIRST + 1))
        assert list(store.links) == [1]
    assert [header.type for header in store.frames] == [FrameType.GOODBYE]
    assert not caplog.records


def test_links_of_a_vanished_worker_are_closed():
    store = FakeStore(2)
    with door_to(store) as door:
        with client(door.url) as dealer:
            say_hello(dealer)
            link = store.links[0]
        until(lambda: link.closed)


def monitor_says(dealer: Dealer) -> Trouble:
    assert dealer.monitor.poll(5000), "nothing happened within 5 s"
    return dealer.trouble()


def test_a_wrong_secret_gets_nowhere(caplog):
    with door_to(FakeStore(2)) as door, client(door.url, b"another secret of the same job..") as dealer:
        dealer.send(Envelope(DoorKind.HELLO).encode(), HELLO.encode())
        assert monitor_says(dealer) is not Trouble.NONE
        assert dealer.receive() is None
    assert "refused" in caplog.text


def test_a_key_of_ones_own_is_refused(caplog):
    """Knows the door's public key, as anybody may, but not the client's secret one."""
    ours, theirs = door_keys(SECRET, INCARNATION), door_keys(b"another secret of the same job..", INCARNATION)
    stranger = replace(theirs, server_public=ours.server_public)
    context = zmq.Context()
    with door_to(FakeStore(2)) as door:
        dealer = Dealer(context, door.url, stranger)
        assert monitor_says(dealer) is Trouble.KEY_REFUSED
        dealer.close()
    context.term()
    assert "its key is not of this job's secret" in caplog.text


def test_who_was_left_over_from_another_start_is_refused(caplog):
    straggler = door_keys(SECRET, bytes(16))
    context = zmq.Context()
    with door_to(FakeStore(2)) as door:
        dealer = Dealer(context, door.url, straggler)
        assert monitor_says(dealer) is Trouble.KEY_REFUSED
        dealer.close()
    context.term()
    assert "its key is not of this job's secret and start" in caplog.text


def test_without_curve_nothing_comes_through(caplog):
    context = zmq.Context()
    with door_to(FakeStore(2)) as door:
        plain = context.socket(zmq.DEALER)
        plain.linger = 0
        plain.connect(door.url)
        plain.send_multipart([Envelope(DoorKind.HELLO).encode(), HELLO.encode()])
        assert not plain.poll(500)
        until(lambda: "no CURVE" in caplog.text)
        plain.close()
    context.term()


def test_refusal_reads_as_documented():
    """A stranger of another version must be able to read it: code u32, text."""
    from byteps_like.wire.door import encode_refusal

    assert encode_refusal(RefusedError("no")) == struct.pack("<I", 5) + b"no"
