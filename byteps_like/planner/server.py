"""A server's shard: sums segments as they come, and sends on at once what everybody has contributed to (cut-through).

Results leave by priority, then age, on a link of its own for each worker. The rules are those of server/.
"""

from __future__ import annotations

import heapq
from collections import Counter

from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.link import Link, Segment
from byteps_like.planner.queue import Push


class Shard:
    """One thread with its keys. `rate`: bytes of contributions that it receives and sums per second."""

    def __init__(self, clock: SimulatedClock, name: str, rate: float, segment_bytes: int) -> None:
        self.name = name
        self.busy = 0.0
        self._clock = clock
        self._rate = rate
        self._segment_bytes = segment_bytes
        self._free = 0.0
        self._results: list[ResultQueue] = []
        self._weights: list[float] = []
        self._rounds: dict[tuple[int, int], Round] = {}

    def worker(self, weight: float = 1.0) -> ResultQueue:
        """Adds a worker, which stands for `weight` alike."""
        self._results.append(ResultQueue(self._segment_bytes))
        self._weights.append(weight)
        return self._results[-1]

    def receive(self, worker: int, segment: Segment) -> None:
        """A segment of `worker` has come: it is summed when the thread gets to it."""
        seconds = self._weights[worker] * segment.nbytes / self._rate
        self.busy += seconds
        self._free = max(self._free, self._clock.now) + seconds
        self._clock.at(self._free, self._summed, worker, segment)

    def _summed(self, worker: int, segment: Segment) -> None:
        push: Push = segment.what
        key = (push.key, push.round)
        current = self._rounds.get(key)
        if current is None:
            current = self._rounds[key] = Round(len(self._results), push.priority)
        current.pushes[worker] = push
        if current.count(segment):
            for number, result in enumerate(self._results):
                result.offer(current, number)
        if current.complete == push.nbytes:
            del self._rounds[key]


class Round:
    """One round of one key. All workers cut a partition alike, so contributions are counted by segment."""

    def __init__(self, workers: int, priority: int) -> None:
        self.pushes: dict[int, Push] = {}
        self.priority = priority
        self.complete = 0
        self._workers = workers
        self._counts: Counter[int] = Counter()

    def count(self, segment: Segment) -> bool:
        """Whether the sum is complete further than before."""
        self._counts[segment.offset] += 1
        if self._counts[segment.offset] < self._workers:
            return False
        self.complete = segment.offset + segment.nbytes
        return True


class Result:
    """What of a round one worker is still to get."""

    def __init__(self, source: Round, push: Push) -> None:
        self.round, self.push = source, push
        self.sent = 0
        self.queued = False


class ResultQueue:
    """Results for one worker, by priority, then age."""

    link: Link

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._queue: list[tuple[int, int, Result]] = []
        self._order = 0
        self._open: dict[int, Result] = {}

    def offer(self, current: Round, worker: int) -> None:
        """There is more of a result than before."""
        push = current.pushes[worker]
        result = self._open.get(id(push))
        if result is None:
            result = self._open[id(push)] = Result(current, push)
        if not result.queued:
            result.queued = True
            self._order += 1
            heapq.heappush(self._queue, (-current.priority, self._order, result))
        self.link.kick()

    def next_segment(self) -> Segment | None:
        """See link.SegmentSource."""
        if not self._queue:
            return None
        result = self._queue[0][2]
        length = min(self._segment_bytes, result.round.complete - result.sent)
        segment = Segment(result.push, result.sent, length)
        result.sent += length
        if result.sent == result.round.complete:
            heapq.heappop(self._queue)
            result.queued = False
            if result.sent == result.push.nbytes:
                del self._open[id(result.push)]
        return segment

    def sent(self, segment: Segment) -> None:
        """See link.SegmentSource."""
