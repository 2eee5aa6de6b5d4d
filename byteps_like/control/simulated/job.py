"""One simulated job of a control plane, from its beginning to its end, and the rules that it has to keep."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from byteps_like.config import Config
from byteps_like.control.simulated.defects import RETURN_SECONDS
from byteps_like.control.simulated.loop import StuckError, VirtualLoop
from byteps_like.control.simulated.member import SimulatedProcess, SimulatedServer, SimulatedWorker
from byteps_like.control.simulated.network import SimulatedNetwork
from byteps_like.control.simulated.operator import Operator
from byteps_like.control.simulated.plan import ControlPlan, Fault, draw_plan
from byteps_like.control.simulated.ruling import ADDRESS, SchedulerProcess, Schedulers
from byteps_like.control.types import EventKind, MemberRole, View, WatchEvent
from byteps_like.worker.api import Declared

_PATIENCE = 7 * 10.0
"""Seconds after the workers were to end: seven times `failure_timeout`."""
_TO_COME_BACK = 6.0
"""Seconds from the beginning of a scheduler for members to come back, and a little more."""


class ControlJob:
    """Of one seed. `run` it once."""

    def __init__(self, seed: int, plan: ControlPlan | None = None, defect: str = "") -> None:
        """`plan`: instead of the seed's. `defect`: of defects.DEFECTS."""
        self._defect = defect
        self.plan = plan or draw_plan(seed)
        self.trace: list[str] = []
        self.complaints: list[str] = []
        self.finishing = False
        self.copies = self.plan.copies
        self._random = Random(seed)
        self._config = _config(self.plan)
        self._network = SimulatedNetwork()
        self._processes: list[SimulatedProcess] = []
        self._running: dict[asyncio.Task[None], None] = {}
        self._operators: dict[asyncio.Task[str], None] = {}
        self._views: dict[int, View] = {}
        self._numbers: dict[int, int] = {}
        """Which process has a member number."""
        self._places: dict[tuple[int, str], Declared] = {}
        self._arrived: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._loop = VirtualLoop()

    def run(self) -> list[str]:
        """What was broken; empty: nothing."""
        with _quiet():
            try:
                self._loop.run_until_complete(self._main())
            except StuckError as error:
                self._complain(f"{error}: {self._who_is_left()}")
            finally:
                self._loop.close()
        return self.complaints

    @property
    def views(self) -> int:
        """How many worlds there were."""
        return len(self._views)

    @property
    def schedulers(self) -> int:
        """How many have ruled, one after the other."""
        return self._schedulers.count

    # What processes see

    def say(self, who: str, what: str) -> None:
        """See Sees."""
        self.trace.append(f"{self._loop.time():11.6f} {who}: {what}")

    def sees(self, process: SimulatedProcess, view: View) -> None:
        """One view of a number, numbers that rise, and members by numbers that no other process has had."""
        self.say(process.name, f"is in view {view.number}: {view.size} workers, {len(view.servers)} servers")
        known = self._views.setdefault(view.number, view)
        if (known.workers, known.servers, known.incarnation) != (view.workers, view.servers, view.incarnation):
            self._complain(f"view {view.number} is another one for {process.name}")
        if view.number <= process.newest:
            self._complain(f"{process.name} sees view {view.number} after view {process.newest}")
        process.newest = view.number
        for member in (*view.workers, *view.servers):
            if self._numbers.setdefault(member.number, member.pid) != member.pid:
                self._complain(f"member number {member.number} is of two processes")

    def hears(self, process: SimulatedProcess, event: WatchEvent) -> None:
        """Nobody is taken for dead who could come back in time."""
        if event.kind is not EventKind.LOST or process.view is None:
            return
        members = [process.view.workers[rank] for rank in event.ranks]
        members += [process.view.servers[rank] for rank in event.servers]
        for member in members:
            lost = next(one for one in self._processes if one.pid == member.pid)
            if (
                not lost.is_dead
                and not lost.excused
                and not lost.is_drained
                and lost.session is not None
                and not lost.session.closed
            ):
                self._complain(f"{lost.name} is taken for dead, and is not: {event.text}")

    def declares(self, view: int, declared: Declared) -> None:
        """All ranks of a view have the same places, unless a server of it has gone meanwhile."""
        known = self._places.setdefault((view, declared.spec.name), declared)
        if known.partitions != declared.partitions and known.tensor_id == declared.tensor_id:
            self._complain(f"{declared.spec.name!r} has two places in view {view}")

    def arrives(self, process: SimulatedProcess, view: int, barrier: int) -> None:
        """See Sees."""
        self._arrived[view, barrier].add(process.pid)

    def passes(self, process: SimulatedProcess, view: int, barrier: int) -> None:
        """All have come who live and have not left."""
        there = {
            one.pid for one in self._processes
            if not one.is_dead and not one.excused and one.view is not None and one.view.number == view
            and one.role is MemberRole.WORKER and one.session is not None and not one.session.closed
            and one.session.error is None
        }  # fmt: skip
        if missing := there - self._arrived[view, barrier]:
            self._complain(f"{process.name} has passed barrier {barrier} of view {view} without {sorted(missing)}")

    def _complain(self, what: str) -> None:
        self.say("!", what)
        self.complaints.append(what)

    # What happens

    async def _main(self) -> None:
        schedulers = self._schedulers = Schedulers(self._config, self._random, self._network, self.say, self._defect)
        schedulers.cuts.append(self._scheduler_is_gone)
        ruling = asyncio.create_task(schedulers.run())
        for kind, count in ((SimulatedServer, self.plan.servers), (SimulatedWorker, self.plan.workers)):
            for _ in range(count):
                self._start(kind)
        faults = asyncio.create_task(self._disturb())
        await asyncio.sleep(self.plan.seconds)
        self.finishing = True
        self.say("job", "is to end")
        _, late = await asyncio.wait([ruling, faults, *self._running], timeout=_PATIENCE)
        if late or self._running:
            self._complain(f"not over {_PATIENCE:g} s after it was to end: {self._who_is_left()}")
        left: list[asyncio.Task[Any]] = [ruling, faults, *self._running, *self._operators]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _start(self, kind: type[SimulatedProcess]) -> None:
        process = kind(self, self._config, self._network, len(self._processes) + 1, self._random)
        self._processes.append(process)
        task = process.start()
        self._running[task] = None
        task.add_done_callback(lambda done: self._ended(done, process))

    def _ended(self, task: asyncio.Task[None], process: SimulatedProcess) -> None:
        """A launcher starts another one in its place, unless it was asked to leave for good."""
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._complain(f"a process has raised {task.exception()!r}")
        if not self.finishing and not self._loop.is_closed() and process.is_replaced:
            self._loop.call_later(self._random.uniform(0.2, 3.0), self._start_again, type(process))

    def _start_again(self, kind: type[SimulatedProcess]) -> None:
        if not self.finishing:
            self._start(kind)

    async def _disturb(self) -> None:
        for fault in self.plan.faults:
            await asyncio.sleep(max(fault.at - self._loop.time(), 0.0))
            await self._happen(fault)

    async def _happen(self, fault: Fault) -> None:
        kind = SimulatedServer if fault.what == "kill server" else SimulatedProcess
        living = [one for one in self._processes if not one.is_dead and isinstance(one, kind)]
        if fault.what == "kill scheduler":
            self._schedulers.kill()
        elif fault.what == "disk full":
            self._schedulers.disk.is_full = True
            await asyncio.sleep(fault.seconds)
            self._schedulers.disk.is_full = False
        elif living:
            self._befall(living[fault.who % len(living)], fault)

    def _befall(self, process: SimulatedProcess, fault: Fault) -> None:
        now = self._loop.time()
        self.say("!", f"{fault.what} of {process.name}, {fault.seconds:.3f} s")
        if fault.what == "reset":
            process.excused = process.excused or process.uplink.stalled_until > now
            process.last_reset = now
            process.uplink.reset()
            if self._defect == "slow-returns":
                process.uplink.closed_until = now + RETURN_SECONDS
        elif fault.what.endswith("stall"):
            could_not_return = now - max(process.last_reset, self._schedulers.began) < _TO_COME_BACK
            process.excused = process.excused or could_not_return or ADDRESS not in self._network.at
            process.uplink.stalled_until = now + fault.seconds
        elif fault.what == "drain":
            self._drain(process, replaced=fault.who % 2 == 0)
        elif fault.what == "power off":
            process.power_off()
        else:
            process.kill()

    def _drain(self, process: SimulatedProcess, replaced: bool) -> None:
        operator = Operator(self._config, self._network, self._random, partial(self.say, "operator"))
        task = asyncio.create_task(operator.drain(process, replaced))
        self._operators[task] = None
        task.add_done_callback(self._drained)

    def _drained(self, task: asyncio.Task[str]) -> None:
        self._operators.pop(task, None)
        if not task.cancelled() and (what := task.result()):
            self._complain(what)

    def _scheduler_is_gone(self, process: SchedulerProcess) -> None:
        for one in self._processes:
            one.excused = one.excused or one.uplink.stalled_until > self._loop.time()
            for connection in list(one.uplink.connections):
                if connection.scheduler is process:
                    connection.cut("the scheduler's process died")

    def _who_is_left(self) -> str:
        return ", ".join(one.name for one in self._processes if not one.is_dead) or "nobody"


def _config(plan: ControlPlan) -> Config:
    return Config.from_env(
        {}, role="worker", scheduler=ADDRESS, job="simulated", secret="s" * 32, world_size=plan.workers,
        num_servers=plan.servers, elastic=True, min_workers=min(plan.least, plan.workers),
    )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """What members and schedulers log is in the trace, as far as it matters."""
    logger = logging.getLogger("byteps_like.control")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
