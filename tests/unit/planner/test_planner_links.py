"""Clock, cards and links: order of events, sharing, full duplex, latency, preemption; all against arithmetic."""

from __future__ import annotations

from collections import deque

import pytest

from byteps_like.planner.clock import Process, SimulatedClock, SimulatedGate
from byteps_like.planner.link import HEADER_BYTES, Link, NicModel, Segment
from byteps_like.planner.queue import Push, PushQueue


class Backlog:
    """A source with segments of given payload, each 1,000 bytes on the wire with its header."""

    def __init__(self, count: int, name: str = "") -> None:
        self.left = deque(Segment(f"{name}{n}", 0, 1000 - HEADER_BYTES) for n in range(count))

    def next_segment(self) -> Segment | None:
        return self.left.popleft() if self.left else None

    def sent(self, segment: Segment) -> None:
        pass


def transfer(
    clock: SimulatedClock, cards: tuple[NicModel, NicModel], count: int, landed: list[float], **options: float
) -> Link:
    link = Link(cards, Backlog(count), lambda _: landed.append(clock.now), **options)  # type: ignore[arg-type]
    link.kick()
    return link


def test_events_come_in_the_order_of_their_times_and_then_of_asking() -> None:
    clock, seen = SimulatedClock(), []
    for name, time in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.5)):
        clock.at(time, lambda name: seen.append((name, clock.now)), name)
    clock.run()
    assert seen == [("a", 1.0), ("b", 1.5), ("c", 2.0), ("d", 2.0)]
    with pytest.raises(ValueError, match="time runs forward only"):
        clock.at(1.0, lambda: None)


def test_processes_sleep_and_wait_at_gates() -> None:
    clock, seen = SimulatedClock(), []
    gate = SimulatedGate(clock, 2)

    def waiter() -> Process:
        yield gate
        seen.append(clock.now)
        yield gate  # open: goes on at once
        yield 1.0
        seen.append(clock.now)

    clock.start(waiter())
    clock.at(3.0, gate.happened)
    clock.at(5.0, gate.happened)
    clock.run()
    assert seen == [5.0, 6.0]


def test_a_segment_takes_its_wire_time_once_and_the_latency() -> None:
    clock, landed = SimulatedClock(), []
    transfer(clock, (NicModel(clock, "a", 1000.0), NicModel(clock, "b", 1000.0)), 3, landed, latency=0.25)
    clock.run()
    assert landed == pytest.approx([1.25, 2.25, 3.25])  # cut-through: the second card adds nothing


@pytest.mark.parametrize(("up", "down"), [(1000.0, 250.0), (250.0, 1000.0)])
def test_the_slower_card_counts(up: float, down: float) -> None:
    clock, landed = SimulatedClock(), []
    transfer(clock, (NicModel(clock, "a", up), NicModel(clock, "b", down)), 4, landed)
    clock.run()
    assert landed == pytest.approx([4.0, 8.0, 12.0, 16.0])


def test_links_share_a_card_and_directions_do_not() -> None:
    clock, first, second, back = SimulatedClock(), [], [], []
    up, down = NicModel(clock, "up", 1000.0), NicModel(clock, "down", 1000.0)
    far = [NicModel(clock, f"far {n}", 1e9) for n in range(3)]
    transfer(clock, (up, far[0]), 4, first)
    transfer(clock, (up, far[1]), 4, second)
    transfer(clock, (far[2], down), 4, back)
    clock.run()
    assert max(first + second) == pytest.approx(8.0, abs=1e-3)
    assert abs(first[-1] - second[-1]) <= 1.0 + 1e-3
    assert back[-1] == pytest.approx(4.0, abs=1e-3)


def test_shares_divide_a_card() -> None:
    clock, small, large = SimulatedClock(), [], []
    up, far = NicModel(clock, "up", 1000.0), NicModel(clock, "far", 1e9)
    transfer(clock, (up, far), 10, small, share=1.0)
    transfer(clock, (up, far), 30, large, share=3.0)
    clock.run()
    assert small[-1] == pytest.approx(40.0, abs=4.0)
    assert large[-1] == pytest.approx(40.0, abs=4.0)


def test_two_senders_share_a_receiver() -> None:
    clock, landed = SimulatedClock(), []
    down = NicModel(clock, "down", 1000.0)
    for name in "ab":
        transfer(clock, (NicModel(clock, name, 1000.0), down), 5, landed)
    clock.run()
    assert landed[-1] == pytest.approx(10.0)
    assert down.busy == pytest.approx(10.0)


def test_luck_divides_a_receiving_card() -> None:
    clock, lucky, unlucky = SimulatedClock(), [], []
    down = NicModel(clock, "down", 1000.0)
    transfer(clock, (NicModel(clock, "a", 1e6), down), 20, lucky, luck=3.0)
    transfer(clock, (NicModel(clock, "b", 1e6), down), 20, unlucky, luck=1.0)
    clock.run()
    assert lucky[-1] == pytest.approx(20 * 4 / 3, abs=2.0)
    assert unlucky[-1] == pytest.approx(40.0, abs=0.1)


def pushed(unsent: int) -> float:
    """Seconds until a segment of high priority has left that was queued behind a long push that is under way."""
    clock, done = SimulatedClock(), []
    queue = PushQueue(clock, 1000 - HEADER_BYTES, 1e9, whole=False)
    cards = (NicModel(clock, "up", 1000.0), NicModel(clock, "down", 1000.0))

    def deliver(segment: Segment) -> None:
        if segment.what.key == 1:
            done.append(clock.now)

    queue.link = Link(cards, queue, deliver, unsent=unsent)
    queue.add(Push(0, 0, 8_000_000, 0, lambda: None))
    clock.at(100.5, lambda: queue.add(Push(1, 0, 900, 5, lambda: None)))
    clock.run()
    return done[0] - 100.5


def test_what_preempts_is_the_segment() -> None:
    assert pushed(unsent=0) == pytest.approx(0.5 + (900 + HEADER_BYTES) / 1000, abs=1e-6)
    assert pushed(unsent=10_000) == pytest.approx(0.5 + 11 + (900 + HEADER_BYTES) / 1000, abs=1.5)


def test_credit_is_how_far_pushes_are_ahead_of_results() -> None:
    clock, sent = SimulatedClock(), []
    queue = PushQueue(clock, 100, 250, whole=False)
    cards = (NicModel(clock, "up", 1e6), NicModel(clock, "down", 1e6))
    queue.link = Link(cards, queue, sent.append)
    queue.add(Push(0, 0, 800, 0, lambda: None))
    clock.at(0.01, lambda: [queue.landed(sent[0]), queue.landed(sent[1])])
    seen: list[int] = []
    clock.at(0.009, lambda: seen.append(len(sent)))
    clock.at(0.02, lambda: seen.append(len(sent)))
    clock.run()
    assert seen == [3, 5]  # 250 bytes may be ahead, and the last segment over it
    assert len(sent) == 8  # in the end credit was lent: nothing came any more
