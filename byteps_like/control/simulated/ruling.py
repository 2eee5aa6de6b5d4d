"""The schedulers of a simulated job: one after the other, each going on with what the one before has stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from byteps_like.config import Config
from byteps_like.control.calls.journal import RuleEndedError
from byteps_like.control.calls.scheduler import take_up
from byteps_like.control.calls.service import SchedulerService
from byteps_like.control.simulated.defects import forgets, planted
from byteps_like.control.simulated.disk import Disk, DiskRecords
from byteps_like.control.simulated.network import SimulatedNetwork
from byteps_like.control.types import INCARNATION_BYTES

ADDRESS = "scheduler:1"


class SchedulerProcess:
    """One of them. See network.Answers."""

    def __init__(self, config: Config, disk: Disk, incarnation: bytes) -> None:
        """Raises RuleEndedError if the disk is full."""
        records = DiskRecords(disk)
        self.term = records.term
        self.service: SchedulerService = take_up(config, records, incarnation)
        self.methods = dict(self.service.methods())


class Schedulers:
    """Starts another one whenever one has ended before the job."""

    def __init__(
        self, config: Config, random: Random, network: SimulatedNetwork, say: Callable[[str, str], None], defect: str
    ) -> None:
        self._config, self._random, self._network, self._say = config, random, network, say
        self._defect = defect
        self.disk = Disk(forgets=lambda: forgets(defect, random))
        self.cuts: list[Callable[[SchedulerProcess], None]] = []
        """Called with each that has ended: its connections break."""
        self.count, self.began = 0, 0.0
        """How many there were, and when the newest began."""
        self._incarnation = random.randbytes(INCARNATION_BYTES)
        self._killed = asyncio.Event()

    async def run(self) -> None:
        """Until the job has ended."""
        while not await self._rule():  # noqa: ASYNC110 - nothing happens that could be waited for
            await asyncio.sleep(self._random.uniform(0.05, 3.0))
        self._say("scheduler", "the job has ended")

    async def _rule(self) -> bool:
        """One of them, until it ends; whether the job has ended with it."""
        try:
            process = SchedulerProcess(self._config, self.disk, self._incarnation)
        except RuleEndedError as error:
            self._say("scheduler", f"can't begin: {error}")
            return False
        process.methods = planted(self._defect, process.methods, self._random)
        self._killed.clear()
        self._network.at[ADDRESS] = process
        self.count, self.began = self.count + 1, asyncio.get_running_loop().time()
        self._say("scheduler", f"rules in term {process.term}")
        ends = [asyncio.create_task(one.wait()) for one in (process.service.ended, self._killed)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        self._end(process)
        return process.service.ended.is_set() and process.service.failure is None

    def kill(self) -> None:
        """The one that there is."""
        self._killed.set()

    def _end(self, process: SchedulerProcess) -> None:
        self._say("scheduler", f"ends: {process.service.failure or 'killed, or done'}")
        self._network.at.pop(ADDRESS, None)
        process.service.stop()
        for cut in self.cuts:
            cut(process)
