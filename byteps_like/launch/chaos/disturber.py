"""Does to the processes of a running job what a schedule says, and notes what comes of it."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from byteps_like.launch.attendant import Attendant
from byteps_like.launch.chaos.growth import SETTLED, WATCHED, GrowthWatch
from byteps_like.launch.chaos.ledger import StepLedger
from byteps_like.launch.chaos.schedule import Disturbance, Violence
from byteps_like.launch.child import Child, ChildPart
from byteps_like.launch.ending import failure

STANDSTILL = 60.0
"""Seconds without a new step after which a job counts as stuck."""
STARTING = 120.0
"""The same for its first step."""
_PROGRESS = 10.0
_LOOK = 5.0
"""Seconds between two looks at memory and descriptors."""
_FREE = 60.0
"""Seconds for which nobody is spared, between two who are."""


@dataclass(frozen=True)
class ChaosPlan:
    """How long a job is disturbed, and how. Times in seconds."""

    violence: Violence
    seconds: float
    """From its first step on."""
    calm: float = 10.0
    """At its beginning, undisturbed: what its steps take then is what they should take."""
    steps: re.Pattern[bytes] = re.compile(rb"\bstep (\d+)")
    """What workers print after each step; the group is its number."""
    least: Mapping[str, int] = field(default_factory=dict)
    """By role, how many processes there are at any time, if only since others take their places at once."""


@dataclass
class Blow:
    """A disturbance that has happened, and the longest time without a step between it and the next one."""

    at: float
    part: ChildPart
    paused: float
    """Seconds for which the process was stopped; 0: it was killed."""
    spawned: bool
    gap: float = 0.0


class Disturber(Attendant):
    """See the module; `act` says when the job has run for long enough."""

    def __init__(self, plan: ChaosPlan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.ledger, self.growth = StepLedger(), GrowthWatch()
        self.blows: list[Blow] = []
        self.deaths: list[str] = []
        """Of processes that have failed by themselves, in words."""
        self.stuck = ""
        """Why the job was given up, if it was."""
        self.ended_at: float | None = None
        """When it was over: the time was, or its workers had made their last step, and one has come to its end."""
        self._say = say
        self._schedule = plan.violence.disturbances()
        self._chance = random.Random(f"{plan.violence.seed} returns")
        """For what depends on who is there, so that the schedule does not."""
        self._children: dict[int, Child] = {}
        self._killed: set[int] = set()
        self._stopped: dict[int, float] = {}
        """Until when."""
        self._held: set[ChildPart] = set()
        self._spared: dict[str, int] = {}
        self._free_until: dict[str, float] = {}
        self._next: Disturbance | None = None
        self._next_at = float("inf")
        self._began: float | None = None
        self._look_at = self._progress_at = 0.0

    # -- what the launcher tells ---------------------------------------------------------------------------------------

    @property
    def held(self) -> Collection[ChildPart]:
        """See Attendant."""
        return self._held

    def started(self, child: Child, now: float) -> None:
        """See Attendant."""
        self._began = now if self._began is None else self._began
        self._children[child.process.pid] = child
        self.growth.began(child.process.pid, str(child.part), now)

    def ended(self, child: Child, now: float) -> None:
        """See Attendant. When a worker is done, the job is, too."""
        pid = child.process.pid
        del self._children[pid]
        self.growth.ended(pid)
        self._stopped.pop(pid, None)
        if child.part.role == "worker" and child.exit_status == 0 and self.ended_at is None:
            self.ended_at = now if self.ledger.began is None else self.ledger.newest_at
        if pid not in self._killed and child.exit_status and self.ended_at is None:
            found = failure.judge(child)
            cause = f": {found.cause[:300]}" if found is not None and found.cause else ""
            self.deaths.append(f"{child.part} ({failure.in_words(child.exit_status)}){cause}")

    def line(self, child: Child, text: bytes, now: float) -> bool:
        """See Attendant. Steps are counted, not shown."""
        found = self.plan.steps.search(text) if child.part.role == "worker" else None
        if found is None:
            return True
        gap = self.ledger.printed(child.process.pid, int(found[1]), now)
        if gap is not None and self.blows:
            self.blows[-1].gap = max(self.blows[-1].gap, gap.seconds)
        return False

    # -- what it does --------------------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """See Attendant."""
        if self.ended_at is not None:
            return None
        return min(self._look_at, self._progress_at, self._next_at, *self._stopped.values())

    def act(self, now: float) -> bool:
        """See Attendant."""
        enough = self.ended_at is None and self._go_on(now)
        self._let_go(now if self.ended_at is None else float("inf"))
        return enough

    def _go_on(self, now: float) -> bool:
        """Whether that was enough."""
        if self.ledger.began is None or self.ledger.newest_at < now - STANDSTILL:
            return self._is_stuck(now)
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self._look(now)
        if now >= self._progress_at:
            self._progress_at = now + _PROGRESS
            self._say(self._progress(now))
        over = self.ledger.began + self.plan.seconds
        if now < over:
            self._disturb_in_time(now, self.ledger.began + self.plan.calm)
            return False
        self._next_at = float("inf")
        if self.ledger.newest_at >= over:  # it has made a step since all that has happened
            self.ended_at = now
        return self.ended_at is not None

    def _is_stuck(self, now: float) -> bool:
        since, most = now if self._began is None else self._began, STARTING
        if self.ledger.began is not None:
            since, most = self.ledger.newest_at, STANDSTILL
        self._look_at = self._progress_at = now + 1.0
        if now > since + most:
            self.ended_at = now
            self.stuck = f"no step for {now - since:.0f} s; the last was {self.ledger.highest}"
        return bool(self.stuck)

    def _disturb_in_time(self, now: float, first: float) -> None:
        if self._next is None:
            self._next = next(self._schedule)
            self._next_at = first + self._next.after
        while now >= self._next_at:
            self._disturb(self._next, now)
            self._next = next(self._schedule)
            self._next_at += self._next.after

    def _disturb(self, what: Disturbance, now: float) -> None:
        self._held = {part for part in sorted(self._held, key=str) if self._chance.random() >= self.plan.violence.spawn}
        candidates = next((some for kind in what.kinds if (some := self._candidates(kind))), [])
        if not candidates:
            self._say("nobody can be killed now")
            return
        child = what.victim(candidates)
        spawns = bool(what.pause) or what.spawn or not self._can_be_without(child.part.role)
        self.blows.append(Blow(now, child.part, what.pause, spawns))
        if what.pause:
            self._stopped[child.process.pid] = now + what.pause
            _send(child, signal.SIGSTOP)
            self._say(f"{child.part} stops for {what.pause:.1f} s")
            return
        if not spawns:
            self._held.add(child.part)
        self._killed.add(child.process.pid)
        child.signal(signal.SIGKILL)
        self._say(f"{child.part} is killed" + ("" if spawns else ", and its place stays empty for a while"))

    def _candidates(self, role: str) -> list[Child]:
        """Those who may be killed: no workers who are the last to know how far the job has come, since they have its
        state."""
        there = sorted(self._of(role), key=lambda child: child.part.rank)
        able = {child.process.pid for child in there if self.ledger.has_stepped(child.process.pid)}
        least = self.plan.least.get(role, 1)
        free = [child for child in there if child.process.pid not in (*self._stopped, self._spared.get(role))]
        if role != "worker":
            return free
        return [child for child in free if len(able - {child.process.pid}) >= least]

    def _can_be_without(self, role: str) -> bool:
        """Whether one of them may be missing for a while."""
        return len(self._of(role)) - 1 >= self.plan.least.get(role, 1)

    def _of(self, role: str) -> list[Child]:
        alive = (child for pid, child in self._children.items() if pid not in self._killed)
        return [child for child in alive if child.part.role == role]

    def _let_go(self, now: float) -> None:
        for pid in [pid for pid, until in self._stopped.items() if until <= now]:
            del self._stopped[pid]
            if pid in self._children:
                _send(self._children[pid], signal.SIGCONT)

    def _look(self, now: float) -> None:
        """At memory and descriptors; one process of each kind at a time is left alone for so long that it can be seen
        whether it grows."""
        self.growth.look([pid for pid in self._children if pid not in self._killed], now)
        if self.plan.seconds < SETTLED + WATCHED + _FREE:
            return
        for role in self.plan.violence.kinds:
            spared = self._spared.get(role)
            if spared is not None and (spared not in self._children or self.growth.is_known(spared, now)):
                del self._spared[role]
                self._free_until[role] = now + _FREE
            elif spared is None and now >= self._free_until.get(role, 0.0) and (there := self._of(role)):
                self._spared[role] = self._chance.choice(sorted(there, key=lambda one: one.part.rank)).process.pid

    def _progress(self, now: float) -> str:
        counts = " ".join(f"{len(self._of(role))} {role}s" for role in ("worker", "server"))
        began = self.ledger.began or now
        rate = self.ledger.rate(max(now - _PROGRESS, began), now)
        return (
            f"{now - began:.0f} s: step {self.ledger.highest} ({rate:.1f}/s), {counts}, {len(self.blows)} disturbances,"
            f" longest gap {max(self.ledger.longest.seconds, now - self.ledger.newest_at):.2f} s"
        )


def _send(child: Child, number: signal.Signals) -> None:
    """To its process group; not by `Child.signal`, after which it would count as ended by the launcher."""
    with suppress(ProcessLookupError):
        os.killpg(child.process.pid, number)
