"""What a portable worker has under way, without any network: order, credit, segments, resuming."""

from __future__ import annotations

import pytest

from byteps_like.dtypes import DType, Op
from byteps_like.errors import CorruptError
from byteps_like.portable.flow import MOST_ACTIVE, Flow
from byteps_like.portable.handle import PortableHandle
from byteps_like.portable.transfer import Transfer
from byteps_like.wire.frame import FrameType, Header
from byteps_like.worker.api import Partition


def transfer(key: int, data: bytearray, priority: int = 0, *, contributes: bool = True) -> Transfer:
    handle = PortableHandle("x", 1, None)  # type: ignore[arg-type]
    template = Transfer(DType.UINT8, Op.SUM, 0, priority, contributes, handle)
    return template.of(Partition(key, 0, len(data), 0, 0), 0, memoryview(data))


def drain(flow: Flow) -> list[tuple[FrameType, int, int, int]]:
    """(type, key, offset, length) of all frames that can go now."""
    frames = []
    while flow.has_frame():
        _, header, payload = flow.next_frame()
        frames.append((header.type, header.key, header.offset, len(payload)))
    return frames


def result(key: int, offset: int, payload: bytes, total: int) -> tuple[Header, bytes]:
    return Header(FrameType.RESULT, DType.UINT8, key=key, offset=offset, length=len(payload), total=total), payload


PUSH, RESUME = FrameType.PUSH, FrameType.RESUME


def test_segments_in_order_and_the_result_in_place():
    finished: list[Transfer] = []
    flow = Flow(8, 100, finished.append)
    data = bytearray(b"abcdefghijklmnopqrst")
    flow.submit(transfer(1, data))
    assert drain(flow) == [(PUSH, 1, 0, 8), (PUSH, 1, 8, 8), (PUSH, 1, 16, 4)]
    assert flow.take(*result(1, 0, b"ABCDEF", 20))
    assert (bytes(data), finished) == (b"ABCDEFghijklmnopqrst", [])
    assert flow.take(*result(1, 4, b"EFGHIJKLMNOPQRST", 20))
    assert bytes(data) == b"ABCDEFGHIJKLMNOPQRST"
    assert [each.key for each in finished] == [1]
    assert not flow.take(*result(1, 0, b"late", 20))
    assert bytes(data) == b"ABCDEFGHIJKLMNOPQRST"


@pytest.mark.parametrize(("asked", "taken"), [(1, 8), (8, 8), (100, 96), (999, 992)])
def test_no_segment_splits_an_element(asked, taken):
    flow = Flow(asked, 10_000, lambda _: None)
    flow.submit(transfer(1, bytearray(2000)))
    assert {length for _, _, _, length in drain(flow)[:-1]} == {taken}


def test_a_higher_priority_goes_between_segments():
    flow = Flow(8, 100, lambda _: None)
    flow.submit(transfer(1, bytearray(16)))
    assert flow.has_frame()
    flow.next_frame()
    flow.submit(transfer(2, bytearray(8), priority=1))
    assert [key for _, key, _, _ in drain(flow)] == [2, 1]


def test_credit_bounds_what_is_in_flight_but_lets_one_through():
    flow = Flow(100, 10, lambda _: None)
    for key in range(3):
        flow.submit(transfer(key, bytearray(20 if key == 0 else 5)))
    assert [key for _, key, _, _ in drain(flow)] == [0]
    flow.take(*result(0, 0, bytes(20), 20))
    assert [key for _, key, _, _ in drain(flow)] == [1, 2]


def test_the_number_in_flight_is_bounded():
    flow = Flow(100, 1 << 30, lambda _: None)
    for key in range(MOST_ACTIVE + 5):
        flow.submit(transfer(key, bytearray(1)))
    assert len(drain(flow)) == MOST_ACTIVE


def test_a_new_link_asks_before_it_pushes():
    flow = Flow(8, 100, lambda _: None)
    flow.submit(transfer(1, bytearray(24)))
    flow.submit(transfer(2, bytearray(8)))
    assert flow.has_frame()
    flow.next_frame()
    flow.take(*result(1, 0, b"AB", 24))
    flow.new_link()
    assert drain(flow) == [(RESUME, 1, 2, 0), (PUSH, 2, 0, 8)]
    flow.take(Header(FrameType.RESUMED, key=1, offset=8, total=24), b"")
    assert drain(flow) == [(PUSH, 1, 8, 8), (PUSH, 1, 16, 8)]


def test_who_only_receives_subscribes_again_on_a_new_link():
    flow = Flow(8, 100, lambda _: None)
    flow.submit(transfer(1, bytearray(8), contributes=False))
    assert drain(flow) == [(PUSH, 1, 0, 0)]
    flow.new_link()
    assert drain(flow) == [(RESUME, 1, 0, 0)]
    flow.take(Header(FrameType.RESUMED, key=1, total=8), b"")
    assert drain(flow) == [(PUSH, 1, 0, 0)]


@pytest.mark.parametrize(
    "frame", [result(1, 4, b"gap", 8), result(1, 0, b"size", 9), (Header(FrameType.RESUMED, key=1, offset=9), b"")]
)
def test_what_can_not_be_is_refused(frame):
    flow = Flow(8, 100, lambda _: None)
    flow.submit(transfer(1, bytearray(8)))
    drain(flow)
    flow.new_link()
    drain(flow)
    with pytest.raises(CorruptError):
        flow.take(*frame)
