"""Why a wait ended when it did: which result it was for, and whose contribution to that came last."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
_SLACK = 1_000_000
"""Nanoseconds by which a thread may be woken after what it has waited for."""


def attribute(events: Iterable[Event]) -> None:
    """Gives each wait its args `cause` and `whom`, and `for_last_us`, the part of it before the last contribution.

    Causes: "late rank" (it handed its gradients over last), "slow link" (it did that in time, but they arrived last),
    "own link" (our own arrived last), "server" (all had arrived: the sum, and its way back), "transfer" (a collective
    that all had begun), "unknown". Times in nanoseconds.
    """
    found = _Index(events)
    for wait in found.waits:
        args = wait["args"]
        cause, whom, before = found.lane(wait) if "lane" in args else found.partition(wait)
        args.update(cause=cause, whom=whom, for_last_us=before / 1000)


class _Index:
    """What waits end with, by member and time; when each rank was ready and when its contribution was there."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.waits: list[Event] = []
        self._received: dict[int, list[tuple[int, str, int, int]]] = defaultdict(list)
        self._calls: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        self._ready: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        self._arrived: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        self._begun: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for event in events:
            self._add(event)
        for received in self._received.values():
            received.sort()
        for calls in self._calls.values():
            calls.sort()

    def _add(self, event: Event) -> None:
        args, end = event["args"], event["ts"] + event["dur"]
        if event["cat"] == "wait":
            self.waits.append(event)
        elif event["cat"] == "collective" and args.get("step") is None:
            self._begun[args["lane"], args["call"]][event["pid"]] = event["ts"]
            self._calls[event["pid"], args["lane"]].append((end, args["call"]))
        elif event["cat"] == "partition" and event["name"] == "ready":
            self._ready[args["key"], args["round"]][event["pid"]] = event["ts"]
        elif event["cat"] == "partition" and event["name"] == "arrived":
            self._arrived[args["key"], args["round"]][args["rank"]] = end
        elif event["cat"] == "partition" and event["name"] == "received" and "server" in args:
            self._received[event["pid"]].append((end, args["key"], args["round"], args["server"]))

    def partition(self, wait: Event) -> tuple[str, str, int]:
        """Cause, whom, nanoseconds until the last contribution was there, of a wait for a server's result."""
        begin, end, rank = wait["ts"], wait["ts"] + wait["dur"], wait["pid"]
        ended_by = _last(self._received[rank], begin, end)
        if ended_by is None:
            return "unknown", "", 0
        _, key, number, server = ended_by
        arrived = self._arrived.get((key, number), {})
        if not arrived:
            return "server", f"server {server}", 0
        last = max(arrived, key=lambda one: arrived[one])
        before = max(0, min(arrived[last], end) - begin)
        if 2 * before < wait["dur"]:
            return "server", f"server {server}", before
        if last == rank:
            return "own link", f"server {server}", before
        ready = self._ready.get((key, number), {})
        behind = arrived[last] - arrived.get(rank, int(begin))
        late = ready.get(last, 0) - ready.get(rank, 0) if {last, rank} <= ready.keys() else 0
        return ("late rank" if 2 * late > behind else "slow link"), f"rank {last}", before

    def lane(self, wait: Event) -> tuple[str, str, int]:
        """The same of a wait for a collective."""
        begin, end, rank, lane = wait["ts"], wait["ts"] + wait["dur"], wait["pid"], wait["args"]["lane"]
        ended_by = _last(self._calls[rank, lane], begin, end)
        if ended_by is None:
            return "unknown", "", 0
        begun = self._begun[lane, ended_by[1]]
        last = max(begun, key=lambda one: begun[one])
        before = max(0, min(begun[last], end) - begin)
        if last != rank and 2 * before > wait["dur"]:
            return "late rank", f"rank {last}", before
        return "transfer", wait["args"]["group"], before


def _last(ends: list[Any], begin: int, end: int) -> Any:
    """The last of `ends` within a wait, whose own end may be seen a little later."""
    at = bisect_right(ends, (end + _SLACK,)) - 1
    while at >= 0 and ends[at][0] > end:
        at -= 1
    return ends[at] if at >= 0 and ends[at][0] >= begin else None
