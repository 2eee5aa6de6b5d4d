"""Who asks a member of a simulated job to leave, as `byteps-like worker drain` and `server drain` do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from byteps_like.config import Config
from byteps_like.control.calls import wire
from byteps_like.control.calls.rpc import UnreachableError
from byteps_like.control.calls.ruler import Ruler
from byteps_like.control.members.drains import DrainOrder, DrainProgress, DrainState
from byteps_like.control.simulated.member import SECRET, SimulatedProcess
from byteps_like.control.simulated.network import SimulatedNetwork, Uplink
from byteps_like.errors import BytePSLikeError

_CALL, _PAUSE = 5.0, 0.2
_PATIENCE = 60.0
"""Seconds within which a member has left that was asked to, unless it is dead."""


class Operator:
    """For one order."""

    def __init__(self, config: Config, network: SimulatedNetwork, random: Random, say: Callable[[str], None]) -> None:
        self._ruler = Ruler(config, SECRET, connect=partial(network.line, Uplink(random)))
        self._say = say

    async def drain(self, process: SimulatedProcess, replaced: bool) -> str:
        """Asks `process` until it has left; what is wrong if it doesn't, else "". Nothing is if nobody could ask it."""
        own = process.session.member if process.session is not None else None
        if own is None or process.view is None:
            return ""
        order = DrainOrder(own.role, own.rank, replace=replaced, member=own.number)
        process.is_drained = True
        try:
            return await self._look_after(process, order)
        except BytePSLikeError as error:
            process.is_drained = False
            self._say(f"{process.name} can't be drained: {error}")
            return ""
        finally:
            await self._ruler.close()

    async def _look_after(self, process: SimulatedProcess, order: DrainOrder) -> str:
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        while loop.time() < until and not process.is_dead:
            progress = await self._ask(order)
            if progress.state in (DrainState.LEFT, DrainState.LOST):
                self._say(f"{process.name} is drained: {progress.state}")
                return ""
            order = replace(order, number=progress.number)
            await asyncio.sleep(_PAUSE)
        return f"{process.name} was asked to leave, and has not" if order.number and not process.is_dead else ""

    async def _ask(self, order: DrainOrder) -> DrainProgress:
        try:
            return wire.drained_from_wire(await self._ruler.call("DrainMember", wire.drain_to_wire(order), _CALL))
        except UnreachableError:
            return DrainProgress(DrainState.FORMING, order.number)
