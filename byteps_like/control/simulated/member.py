"""Simulated processes of workers and servers: what they do with the scheduler, over real sessions."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

from byteps_like.config import Config
from byteps_like.control.calls import wire
from byteps_like.control.calls.session import Session
from byteps_like.control.members.seats import JoinClaim
from byteps_like.control.simulated.network import SimulatedNetwork, Uplink
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, ShutdownError
from byteps_like.worker.api import Declared, TensorSpec

SECRET = bytes(32)
_LEAVE, _CALL, _BARRIER = 1.5, 30.0, 120.0
_NAMES = 5
"""Tensors that workers declare."""
_POWER_OFF = 20.0
"""Seconds after which the kernel of the scheduler's host gives up the connections of a host that is gone."""


class Sees(Protocol):
    """The job, which checks what its processes see."""

    finishing: bool
    copies: int
    """How many servers have each value that they keep; 0: they keep none."""

    def say(self, who: str, what: str) -> None:
        """For the trace."""

    def sees(self, process: SimulatedProcess, view: View) -> None:
        """It is in this view."""

    def hears(self, process: SimulatedProcess, event: WatchEvent) -> None:
        """Of this."""

    def declares(self, view: int, declared: Declared) -> None:
        """A tensor's place was told in that view."""

    def arrives(self, process: SimulatedProcess, view: int, barrier: int) -> None:
        """At a barrier."""

    def passes(self, process: SimulatedProcess, view: int, barrier: int) -> None:
        """That barrier."""


class SimulatedProcess(ABC):
    """One of them. `pid` is its own; those of its job have several after each other in its place."""

    role: MemberRole

    def __init__(self, job: Sees, config: Config, network: SimulatedNetwork, pid: int, random: Random) -> None:
        self.job, self.pid, self.uplink = job, pid, Uplink(random)
        self.name = f"{self.role.value} {pid}"
        self.is_dead = False
        self.excused = False
        """It may be taken for dead: it could not come back in time."""
        self.last_reset = float("-inf")
        self.is_drained = False
        """It was asked to leave."""
        self.session: Session | None = None
        self.view: View | None = None
        self.newest = -1
        """The number of the last view that it has seen."""
        self._config, self._network, self._random = config, network, random
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """It runs until it ends, or dies."""
        self._task = asyncio.create_task(self._main())
        return self._task

    @property
    def is_replaced(self) -> bool:
        """Whether another one is to be started in its place."""
        asked = self.session.dismissal if self.session is not None else None
        return asked is None or asked.replace

    def kill(self) -> None:
        """It dies, and its kernel closes its connections."""
        self.is_dead = True
        if self.session is not None:
            self.session.abandon()
        if self._task is not None:
            self._task.cancel()
        self.uplink.reset("the process died")

    def power_off(self) -> None:
        """Its host is gone, and nobody is told."""
        self.is_dead = self.uplink.is_silent = True
        asyncio.get_running_loop().call_later(_POWER_OFF, self.kill)

    async def _main(self) -> None:
        try:
            await self._run()
            self.job.say(self.name, "ends well")
        except BytePSLikeError as error:
            self.job.say(self.name, f"ends: {error}")
        finally:
            if self.session is not None:
                self.session.abandon()

    @abstractmethod
    async def _run(self) -> None:
        """What it does."""

    def _new_session(self, follows: str = "") -> Session:
        worker, config = self.role is MemberRole.WORKER, self._config
        member = Member(
            self.role, -1, host="host", host_id=f"host-{self.pid}", pid=self.pid, urls=(f"sim://{self.pid}",)
        )
        claim = JoinClaim(
            id=f"{self._random.getrandbits(64):016x}",
            member=member,
            world_size=config.world_size if worker else 0,
            num_servers=config.servers if worker else config.num_servers,
            settings=config.job_settings(explicit_only=not worker),
            timeout=config.join_timeout,
            follows=follows,
        )
        self.session = Session(config, SECRET, claim, self._hear, dict, partial(self._network.line, self.uplink))
        return self.session

    def _hear(self, event: WatchEvent) -> None:
        self.job.say(self.name, f"hears: {event.kind}: {event.text}")
        self.job.hears(self, event)

    def _see(self, view: View) -> None:
        self.view = view
        self.job.sees(self, view)


class SimulatedWorker(SimulatedProcess):
    """Joins, works, and goes from one world to the next, until the job is to end."""

    role = MemberRole.WORKER

    async def _run(self) -> None:
        follows = ""
        while True:
            session = self._new_session(follows)
            try:
                self._see(await session.join())
                await self._work(session)
            except ShutdownError:
                return
            except BytePSLikeError as error:
                self.job.say(self.name, f"meets: {error}")
                if session.view is None:
                    raise
            self.view = None
            is_over = session.error is None and (self.job.finishing or session.dismissal is not None)
            follows = session.known_as
            await session.close(not is_over, _LEAVE)
            if is_over:
                return

    async def _work(self, session: Session) -> None:
        """Until this world is to be left."""
        while not session.changes and not self.job.finishing:
            await asyncio.sleep(self._random.uniform(0.02, 0.5))
            if session.error is not None:
                raise session.error
            await self._random.choice((self._declare, self._meet, self._rest))(session)

    async def _rest(self, session: Session) -> None:
        """Computes."""

    async def _declare(self, session: Session) -> None:
        assert self.view is not None
        if not self.view.servers:
            return
        number = self._random.randrange(_NAMES)
        spec = TensorSpec(f"t{number}", DType.FLOAT32, (1000 * (number + 1),))
        if number == 0 and self.job.copies:
            spec = replace(spec, on_loss="finish", replicas=self.job.copies)
        request = pb.DeclareRequest(member_id=session.id, specs=[wire.spec_to_wire(spec)])
        reply: pb.DeclareReply = await session.call("Declare", request, _CALL)
        self.job.declares(self.view.number, wire.declared_from_wire(spec, reply.placements[0]))

    async def _meet(self, session: Session) -> None:
        assert self.view is not None
        number, view = session.barriers.get("b", 0), self.view.number
        self.job.arrives(self, view, number)
        request = pb.BarrierRequest(member_id=session.id, name="b", timeout_s=_BARRIER, number=number)
        await session.call("Barrier", request, _BARRIER + _CALL)
        session.barriers["b"] = number + 1
        self.job.passes(self, view, number)


class SimulatedServer(SimulatedProcess):
    """Serves one world after the other, until the job ends or it is to leave."""

    role = MemberRole.SERVER
    _handing_over: asyncio.Task[None] | None = None

    def _hear(self, event: WatchEvent) -> None:
        super()._hear(event)
        if event.kind is EventKind.DRAIN and event.hand_over and self._handing_over is None:
            self._handing_over = asyncio.create_task(self._hand_over())

    async def _hand_over(self) -> None:
        """To other servers, which takes a while."""
        self.job.say(self.name, "hands over what it keeps")
        await asyncio.sleep(self._random.uniform(0.05, 2.0))
        if self.session is not None and not self.is_dead:
            await self.session.close(False, _LEAVE, handed_over=True)

    async def _run(self) -> None:
        session = self._new_session()
        try:
            view = await session.join()
            while True:
                self._see(view)
                request = pb.ReadyRequest(member_id=session.id, epoch=view.number)
                await session.call("Ready", request, _CALL)
                view = await session.next_view()
        except ShutdownError:
            return
        finally:
            if not self.is_dead:
                await session.close(False, _LEAVE)
