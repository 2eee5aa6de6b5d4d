"""CollectiveWorker: the Worker without servers. What others push to servers, it reduces among the workers themselves.

A name has a lane per partition, made of the name, so ranks may use names, and the partitions of one name, in different
orders. Names cost no round trip: shape and dtype travel beside the first use of a name and are compared then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.collectives.together import Together, Waitable
from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError, PeerLostError, ShutdownError
from byteps_like.worker.agreement import Agreement
from byteps_like.worker.api import (
    Answer,
    Attends,
    Declared,
    Dismissal,
    Feedback,
    Handle,
    HearsOfChanges,
    Links,
    Meeting,
    Meets,
    MeetsNewcomers,
    Newcomer,
    Partition,
    Places,
    Scatter,
    SharedMemory,
    TellsOfLosses,
    TensorSpec,
)
from byteps_like.worker.coded import CodedLanes
from byteps_like.worker.engine.step_log import LogsSteps, StepLog
from byteps_like.worker.local import CompletedHandle, DeclaredNames, check_feedback, check_push_pull
from byteps_like.worker.standing import Standing, Stands
from byteps_like.worker.surviving import PartReduction, SurvivingSums

logger = logging.getLogger(__name__)


class Groups(Protocol):
    """What a CollectiveWorker stands on: a member of the world that can make groups. See worker.api.Worker."""

    seal_key: bytes

    @property
    def standing(self) -> Standing:
        """Where it stands in the view in force."""

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """Some ranks, with a lane of their own."""

    def empty_shared(self, nbytes: int) -> SharedMemory:
        """Memory that peers on this host map."""

    def note_route(self, name: str) -> None:
        """For the job's status."""

    def barrier(self, timeout: float | None = None) -> None:
        """Blocks until every rank has come."""

    def stats(self) -> dict[str, int]:
        """Counters of all links."""

    def close(self) -> None:
        """Leaves the job."""


WORLD = "world"


class CollectiveWorker(Stands):
    """The workers `members` of the world of `base` (default: all), numbered anew. See worker.api.Worker for the calls.

    `members` are member numbers, so that a view that renumbers ranks leaves them who they are. `label` tells the names
    of one set of workers from those of another. Closing it closes `base`, if it is the world.
    """

    route = "allreduce"

    def __init__(
        self,
        base: Groups,
        partition_bytes: int,
        members: Sequence[int] | None = None,
        label: str = WORLD,
        patience: float = 0.0,
    ) -> None:
        """`patience`: in an elastic job, seconds in which all-reduces are to go on without ranks that have died."""
        self.seal_key = base.seal_key
        self.steps = base.steps if isinstance(base, LogsSteps) else StepLog()
        self._base = base
        self._members = None if members is None else tuple(members)
        self._known: tuple[Standing, Standing] | None = None
        self._owns = label == WORLD
        self._label = label
        self._catalogue = DeclaredNames(partition_bytes)
        self._lanes: dict[int, tuple[Standing, Group]] = {}
        """By key, each of the view that it was made in."""
        self._groups: dict[str, Group] = {}  # all that were made for it alone and have not ended
        self._coded = CodedLanes()
        self._agreed: set[int] = set()
        self._lock = threading.Lock()
        self._links = Links()
        self._sums: SurvivingSums | None = None
        if patience and isinstance(base, TellsOfLosses):
            self._sums = SurvivingSums(base, base.standing, self.steps, label, patience)
            base.attend_losses(self._sums)
        self._closed = False

    @property
    def standing(self) -> Standing:
        """See worker.api.Worker."""
        base = self._base.standing
        if self._members is None:
            return base
        if self._known is None or self._known[0] is not base:
            self._known = base, base.among(self._members)
        return self._known[1]

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks of its members, in the view in force."""
        return self._base.standing.ranks_of(self.standing.members)

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Cuts names into partitions; asks nobody. Raises MismatchError for a name of another dtype or shape here."""
        self._check_open()
        return [self._catalogue.declare(spec) for spec in specs]

    def allocate(self, nbytes: int) -> SharedMemory:
        """Memory that the other ranks of this host reduce in place."""
        self._check_open()
        return self._base.empty_shared(nbytes)

    empty_shared = allocate

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,
    ) -> Handle:
        """One all-reduce (or broadcast) per partition, on the partition's lane. See worker.api.Worker.push_pull."""
        self._check_open()
        check_push_pull(declared, address, op, parts)
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root {root} is not one of {self.size} ranks")
        flights: list[Waitable] = list(self._agreement(declared))
        wanted = declared.spec.priority if priority is None else priority
        segment = self._links.segment_bytes
        options = CallOptions(priority=wanted, traffic=Traffic.GRADIENT, segment_bytes=segment)
        chosen = declared.partitions if parts is None else declared.partitions[parts.start : parts.stop]
        flights += [self._launch(declared, part, address + part.offset, op, root, options) for part in reversed(chosen)]
        return Together(flights) if flights else CompletedHandle()

    def _launch(
        self, declared: Declared, part: Partition, address: int, op: Op, root: int, options: CallOptions
    ) -> Waitable:
        if declared.spec.codec and op is not Op.BROADCAST:
            lane = self._lane(declared, part)
            return self._coded.launch(declared, part, (lane, partial(self._sublane, lane.name)), address, op, options)
        dtype = declared.spec.dtype
        count = part.nbytes // dtype.itemsize
        if op is Op.BROADCAST:
            lane = self._lane(declared, part)
            return lane.broadcast(address, count, dtype, self._place(lane, root), options)
        chosen = options._replace(algorithm=self._links.algorithm)
        if self._sums is not None:
            return self._sums.begin(self._lane_name(declared, part), PartReduction(declared, part, address, op, chosen))
        return self._lane(declared, part).all_reduce(address, address, count, dtype, op, chosen)

    def _place(self, lane: Group, root: int) -> int:
        """Of a rank in a lane of those who live."""
        if self._sums is None:
            return root
        if root not in lane.ranks:
            raise PeerLostError(
                f"rank {root}, whose values are wanted, has died", rank=self.rank, operation="broadcast"
            )
        return lane.ranks.index(root)

    def _lane_name(self, declared: Declared, part: Partition) -> str:
        # Keys are numbered in the order of declarations, which differs over the ranks; names do not.
        return f"{self._label}/{declared.spec.name}/{part.key & 0xFFFF}"

    def _lane(self, declared: Declared, part: Partition) -> Group:
        if self._sums is not None and not declared.spec.codec:
            return self._sums.lane(self._lane_name(declared, part))
        standing, known = self.standing, self._lanes.get(part.key)
        if known is None or known[0] is not standing:
            known = self._lanes[part.key] = standing, self._group(self._lane_name(declared, part), self.ranks)
        return known[1]

    def _sublane(self, lane: str, name: str, ranks: Sequence[int]) -> Group:
        return self._group(f"{lane}/{name}", self._world_ranks(ranks))

    def _world_ranks(self, ranks: Sequence[int]) -> list[int]:
        world = self.ranks
        return [world[rank] for rank in ranks]

    def _group(self, name: str, ranks: Sequence[int]) -> Group:
        group = self._base.group(name, ranks)
        if not self._owns:
            self._groups[name] = group
        return group

    def _agreement(self, declared: Declared) -> list[Agreement]:
        """The first use of a name compares its dtype and shape over the ranks."""
        if declared.spec.says_all:
            return []
        with self._lock:
            if declared.tensor_id in self._agreed:
                return []
            self._agreed.add(declared.tensor_id)
        spec = declared.spec
        lane = self._agreement_lane(declared)
        kind = f"{spec.dtype.name.lower()} {list(spec.shape)}" + (f" by codec {spec.codec}" if spec.codec else "")
        return [Agreement(lane, repr(spec.name), kind, spec.details)]

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """Some of its ranks (in its own numbers), for collectives. See worker.api.Worker.group."""
        self._check_open()
        chosen = self.ranks if ranks is None else self._world_ranks(ranks)
        return self._group(f"{self._label}/{name}" if not self._owns else name, chosen)

    def placed(self, declared: Declared, follows: bool = True) -> Declared:  # noqa: ARG002 - nothing moves here
        """`declared`. See worker.api.Worker.placed."""
        return declared

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """See worker.api.Worker.compensate."""
        check_feedback(declared, feedback)
        self._coded.compensate(declared, feedback)

    def rescale(self, declared: Declared, factor: float) -> None:
        """See worker.api.Worker.rescale."""
        self._coded.rescale(declared, factor)

    def coded_scatter(self, group: Group, codec: str, rounds: int = 0) -> Scatter:
        """See worker.api.Scatters."""
        return self._coded.scatter(group, codec, rounds)

    def use(self, links: Links) -> None:
        """See worker.api.Tunable. There is no credit here: a rank can't run ahead in a collective."""
        self._links = links

    def retire(self, declared: Declared) -> None:
        """See worker.api.Tunable."""
        self._coded.retire(declared)
        for part in declared.partitions:
            if self._sums is not None:
                self._sums.retire(self._lane_name(declared, part))
            known = self._lanes.pop(part.key, None)
            if known is not None:
                known[1].release()

    def forget(self, declared: Declared) -> None:
        """See worker.api.Forgets."""
        self._coded.retire(declared)
        self._catalogue.forget(declared)
        lanes = [known[1] for part in declared.partitions if (known := self._lanes.pop(part.key, None)) is not None]
        if self._sums is not None:
            for part in declared.partitions:
                self._sums.forget(self._lane_name(declared, part))
        with self._lock:
            agreed = declared.tensor_id in self._agreed
            self._agreed.discard(declared.tensor_id)
        if agreed:
            lanes.append(self._agreement_lane(declared))
        for lane in lanes:
            self._groups.pop(lane.name, None)
            lane.end()

    def _agreement_lane(self, declared: Declared) -> Group:
        name = f"{self._label}/{declared.spec.name}/agreement"
        return self._group(name, self.ranks) if self._sums is None else self._sums.lane(name)

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """See worker.api.Meets."""
        if isinstance(self._base, Meets):
            self._base.meet(waiting, answer)

    def attend(self, who: Attends) -> None:
        """See worker.api.Meets."""
        if isinstance(self._base, Meets):
            self._base.attend(who)

    def changes(self) -> int:
        """See worker.api.HearsOfChanges."""
        return self._base.changes() if isinstance(self._base, HearsOfChanges) else 0

    def dismissal(self) -> Dismissal | None:
        """See worker.api.HearsOfChanges."""
        return self._base.dismissal() if isinstance(self._base, HearsOfChanges) else None

    def newcomers(self) -> Sequence[Newcomer]:
        """See worker.api.MeetsNewcomers."""
        return self._base.newcomers() if isinstance(self._base, MeetsNewcomers) else ()

    def feed(self, number: int, feeders: str) -> None:
        """See worker.api.MeetsNewcomers."""
        if isinstance(self._base, MeetsNewcomers):
            self._base.feed(number, feeders)

    def places(self) -> Places:
        """See worker.api.Placed."""
        return Places(len(set(self._group(f"{self._label}/places", self.ranks).hosts)), 0)

    def note_route(self, name: str) -> None:
        """See worker.api.Worker.note_route."""
        self._base.note_route(name)

    def barrier(self, timeout: float | None = None) -> None:
        """Blocks until every rank has come to its barrier."""
        self._check_open()
        if self._owns:
            self._base.barrier(timeout)
        else:
            self.group("barrier").barrier(CallOptions(timeout=timeout, traffic=Traffic.CONTROL)).wait()

    def stats(self) -> dict[str, int]:
        """Counters of all links to the other workers."""
        return self._base.stats()

    def close(self) -> None:
        """Leaves the job, if it is the world: operations in flight fail with ShutdownError. Else its groups end, and
        nothing of them may be in flight on this rank. Idempotent."""
        self._closed = True
        self._coded.close()
        while self._groups:
            self._groups.popitem()[1].end()
        if self._owns:
            self._base.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ShutdownError("this worker has been shut down; call init() again")
