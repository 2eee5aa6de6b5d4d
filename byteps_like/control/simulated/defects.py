"""Defects that a test plants, and that jobs must find: they change what the seams carry, as a wrong code would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from byteps_like.control.v1 import scheduler_pb2 as pb

DEFECTS = {
    "": "none",
    "forgets": "what a scheduler has decided is sometimes not stored",
    "early-barriers": "a barrier sometimes lets a rank go at once",
    "other-views": "a member sometimes gets a view with its workers in another order",
    "slow-returns": "a connection that broke can't be made again for two seconds",
}
"""By name, what goes wrong."""

RETURN_SECONDS = 2.0
"""Of slow-returns."""
_ONE_IN = 8

Behaviour = Callable[..., Awaitable[Any]]


def planted(defect: str, methods: dict[str, Any], random: Random) -> dict[str, Any]:
    """A scheduler's methods, with it."""
    if defect == "early-barriers":
        return methods | {"Barrier": _early(methods["Barrier"], random)}
    if defect == "other-views":
        return methods | {"Watch": _turned(methods["Watch"], random)}
    return methods


def forgets(defect: str, random: Random) -> bool:
    """Whether this commit does nothing."""
    return defect == "forgets" and random.randrange(_ONE_IN) == 0


def _early(barrier: Behaviour, random: Random) -> Behaviour:
    async def answer(request: pb.BarrierRequest) -> Any:
        return pb.BarrierReply() if random.randrange(_ONE_IN) == 0 else await barrier(request)

    return answer


def _turned(watch: Behaviour, random: Random) -> Behaviour:
    async def answer(request: pb.WatchRequest, write: Callable[[bytes], Awaitable[None]]) -> None:
        async def pass_on(data: bytes) -> None:
            message = pb.WatchMessage.FromString(data)
            if message.HasField("world") and random.randrange(_ONE_IN) == 0:
                workers = list(message.world.workers)
                del message.world.workers[:]
                message.world.workers.extend(reversed(workers))
            await write(message.SerializeToString())

        await watch(request, pass_on)

    return answer
