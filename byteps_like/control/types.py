"""What members of a job know of each other. Plain data: the proto messages are turned into these at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from byteps_like.config_values import parse
from byteps_like.errors import BytePSLikeError
from byteps_like.worker.api import MeetingPlace, Newcomer, Partition, Question
from byteps_like.worker.standing import Standing

INCARNATION_BYTES = 16


class MemberRole(StrEnum):
    """A member's part in the job."""

    WORKER = "worker"
    SERVER = "server"


@dataclass(frozen=True)
class Member:
    """One process of the job.

    `host_id` is equal for processes that can share memory (boot id + network namespace + hostname). `urls` are a
    server's data addresses in order of preference for a peer on the same host ("shm://…", then "tcp://…"); `door` is
    its portable door ("tcp://host:port", ZeroMQ) and `admin` its gRPC admin address. `gbps` is the rate of its host's
    network card, each way, 0 where it is not known. `number` names the process on the data plane: the scheduler
    gives it at Join, and never to another one (0: none yet). A server with a `rack` sums for the workers of that rack
    alone (control.placing.racks).
    """

    role: MemberRole
    rank: int
    host_id: str
    host: str
    pid: int
    urls: tuple[str, ...] = ()
    shards: int = 0
    door: str = ""
    admin: str = ""
    native: bool = True
    gbps: float = 0.0
    number: int = 0
    rack: str = ""


@dataclass(frozen=True)
class View:
    """Who is in the job from one moment to the next, the same for everybody.

    The scheduler's Membership makes each view and numbers them from 1. A rank is a place in `workers`: it may be
    another member's in the next view, so state that outlives a round is kept by member number. Sizes and ranks are
    asked of the view in force, and remembered for no longer than a round.
    """

    job: str
    number: int
    workers: tuple[Member, ...]
    servers: tuple[Member, ...]
    settings: dict[str, str] = field(default_factory=dict)
    """Job-wide settings the scheduler holds all members to (partition_bytes, stall_timeout, ...)."""
    incarnation: bytes = bytes(INCARNATION_BYTES)
    """Drawn at random by the scheduler when it starts: tells this start of the job from every other one."""

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @cached_property
    def finishes_sums(self) -> bool:
        """Whether sums are finished without workers that have died, by servers, or by the others where there are none,
        and servers take over from others that have: in elastic jobs, but not by way of aggregators, nor with portable
        workers, which don't hear who is missing."""
        elastic = parse("elastic", self.settings.get("elastic", "no"), bool)
        plain = all(worker.native for worker in self.workers) and not any(server.rack for server in self.servers)
        return elastic and plain

    @property
    def outlives_servers(self) -> bool:
        """Whether other servers take over from those that are gone."""
        return self.finishes_sums and len(self.servers) > 1

    @cached_property
    def ranks(self) -> Mapping[int, int]:
        """The workers' ranks by member number, in the order of the ranks."""
        return MappingProxyType({worker.number: rank for rank, worker in enumerate(self.workers)})

    def standing(self, member: int) -> Standing:
        """Where the worker with this member number stands."""
        rank = self.ranks[member]
        near = [place for place, one in enumerate(self.workers) if one.host_id == self.workers[rank].host_id]
        return Standing(rank, tuple(self.ranks), near.index(rank), len(near))


class EventKind(StrEnum):
    """What a member hears on its watch stream after the first view."""

    FAILED = "failed"  # the job of this epoch is over: `error` says why
    WARNING = "warning"  # log it
    ENDED = "ended"  # everybody left in order
    MOVES = "moves"  # tensors will be placed anew: `moves`
    DISAGREEMENT = "disagreement"  # some operations fail on all ranks: `disagreement`
    QUESTION = "question"  # which operations a rank has begun: `question`
    RECORD = "record"  # record a timeline: `text` is the order; none: end it
    LOST = "lost"  # members have died or left, and the epoch goes on without them: `ranks`, `servers`
    JOINERS = "joiners"  # others wait to join, and there is room for them
    DRAIN = "drain"  # this member is to leave: a server now, a worker at its next commit
    NEWCOMER = "newcomer"  # somebody would catch up with the workers before it joins: `newcomer`
    LEFT_OUT = "left out"  # a world has begun without this worker, which waits for room


@dataclass(frozen=True)
class Move:
    """Where the tensor that was first declared as `tensor_id` goes: `new_id`, whose keys begin at round 0."""

    tensor_id: int
    new_id: int
    partitions: tuple[Partition, ...]


@dataclass(frozen=True)
class Disagreement:
    """No operation at these places comes about: ranks mean different things by it, or began one in place of another."""

    places: tuple[MeetingPlace, ...]
    text: str
    ranks: tuple[int, ...] = ()
    """Who is told, since they would come there; none: all."""
    given_up: tuple[str, ...] = ()
    """The names under which their data would have travelled."""


@dataclass(frozen=True)
class WatchEvent:
    """One message of the watch stream."""

    kind: EventKind
    text: str
    error: BytePSLikeError | None = None
    moves: tuple[Move, ...] = ()
    disagreement: Disagreement | None = None
    question: Question | None = None
    ranks: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    epoch: int = 0
    """That has failed; 0: none has."""
    replace: bool = False
    """Another one may be started in place of who is to leave."""
    hand_over: bool = False
    """A server that is to leave does so once others have the values that it keeps."""
    newcomer: Newcomer | None = None
