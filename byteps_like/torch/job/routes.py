"""Which way an operation takes, and over which ranks: servers or collectives, the world or a process set."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from byteps_like.collectives.api import Group
from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.buffer import DeviceBuffer
from byteps_like.torch.device.flight import DeviceFlight
from byteps_like.torch.job.naming import Claim
from byteps_like.worker.api import Declared, Forgets, Handle, OnGpu, TensorSpec, UsesGpu, Worker
from byteps_like.worker.local import check_same
from byteps_like.worker.standing import Standing

logger = logging.getLogger(__name__)

ROUTES = ("auto", "server", "allreduce")
"""What a user may ask for."""

_WHY = {
    "server": "the job has servers",
    "allreduce": "the job has no servers",
    "none": "a world of one sends nothing",
}


class Request(NamedTuple):
    """How a push_pull is made. See worker.api.Worker.push_pull."""

    root: int = 0
    parts: range | None = None
    priority: int | None = None
    place: DeviceBuffer | None = None
    """Of a tensor on a device; then the address is that of its mirror."""
    claim: Claim | None = None
    """Of an operation of a single tensor, whose name the ranks may let go of (see naming)."""


WHOLE = Request()


class Observer(Protocol):
    """Who sees every push_pull of a route before it is launched (join.Joiner)."""

    def push_pull(self, route: Route, declared: Declared, address: int, op: Op, how: Request) -> Handle:
        """Launches it."""


class Route:
    """One way of reducing tensors: `name` is "server", "allreduce" or "none" (a world of one); `why` says who chose."""

    def __init__(self, worker: Worker, why: str = "") -> None:
        self.worker = worker
        self.name = worker.route
        self.why = why or _WHY[worker.route]
        self.observer: Observer | None = None
        self._declared: dict[str, Declared] = {}
        self._sorted: list[str] = []
        """Their names."""
        self._lock = threading.Lock()
        """For changes of these two."""
        self._carries: dict[str, bool] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Agrees on names with all ranks: one round trip for those that are new here, none for the others.

        Raises MismatchError if a name was declared with another dtype or shape, here or on another rank.
        """
        known = self._declared
        fresh = [spec for spec in specs if spec.name not in known]
        if fresh:
            self._keep(self.worker.declare(fresh))
        for spec in specs:
            before = known[spec.name].spec
            if before is not spec and before != spec:
                check_same(before, spec)
        return [known[spec.name] for spec in specs]

    def declare_one(self, spec: TensorSpec) -> Declared:
        """The same of one name; nearly free for the very object that it was declared with."""
        known = self._declared.get(spec.name)
        return known if known is not None and known.spec is spec else self.declare([spec])[0]

    @property
    def names(self) -> list[str]:
        """Those that were declared."""
        return list(self._declared)

    def retire(self, name: str) -> list[str]:
        """No rank will use `name` again, nor what was made of it ("name.part"); what was let go of."""
        with self._lock:
            gone = [self._declared.pop(one) for one in self._take(name)]
        if isinstance(self.worker, Forgets):
            for declared in gone:
                self.worker.forget(declared)
        return [declared.spec.name for declared in gone]

    def _keep(self, items: Sequence[Declared]) -> None:
        with self._lock:
            for item in items:
                if item.spec.name not in self._declared:
                    insort(self._sorted, item.spec.name)
                self._declared[item.spec.name] = item

    def _take(self, name: str) -> list[str]:
        """Takes `name` and its parts out of the sorted names, where the parts stand together."""
        found = []
        for first, beyond in ((name, f"{name}\0"), (f"{name}.", f"{name}/")):  # "/" comes right after "."
            place = slice(bisect_left(self._sorted, first), bisect_left(self._sorted, beyond))
            found += self._sorted[place]
            del self._sorted[place]
        return found

    def push_pull(self, declared: Declared, address: int, op: Op, how: Request = WHOLE) -> Handle:
        """See worker.api.Worker.push_pull."""
        if self.observer is not None:
            return self.observer.push_pull(self, declared, address, op, how)
        return self.launch(declared, address, op, how)

    def launch(self, declared: Declared, address: int, op: Op, how: Request) -> Handle:
        """The same, seen by nobody."""
        push_pull: Any = self.worker.push_pull
        if how.place is None or (self.name == "none" and not declared.spec.codec):
            return push_pull(declared, address, op, root=how.root, parts=how.parts, priority=how.priority)  # type: ignore[no-any-return]
        begin = partial(push_pull, declared, address, op, root=how.root, parts=how.parts, priority=how.priority)
        device, data, shares = how.place.stage.device, how.place.data, how.place.shares
        if shares is not None and shares.takes(declared, how.place, op):
            return shares.start(declared, how.place, op, how.parts, how.priority or 0)  # type: ignore[no-any-return]
        if self.carries(device):
            on_gpu = OnGpu(device.address(data), device.current().handle)
            return DeviceFlight(begin(gpu=on_gpu), device, how.place)
        down, up = how.place.copies(declared, how.parts)
        if op is Op.BROADCAST:
            down, up = (down, []) if how.root == self.worker.rank else ([], up)
        return how.place.stage.start(down, up, begin)

    def carries(self, device: Device | None) -> bool:
        """Whether its worker copies tensors of `device` down and up by itself, and encodes there what it can: asked
        before such are declared. Else threads of ours copy them (passage.Stage)."""
        if device is None:
            return False
        if device.name not in self._carries:
            gpu = device.native() if isinstance(self.worker, UsesGpu) else None
            worker: Any = self.worker
            self._carries[device.name] = gpu is not None and worker.use_gpu(gpu, device.kernels)
        return self._carries[device.name]

    def report(self, what: str) -> None:
        """Says in the log, and in the job's status, which way `what` goes."""
        self.worker.note_route(self.name)
        logger.info("rank %d: %s: route %r, because %s", self.worker.rank, what, self.name, self.why)


@dataclass(frozen=True)
class Scope:
    """The ranks that an operation goes over: the world (number 0) or a process set.

    A set's `members` are kept by member number; what ranks they have is asked of the view in force each time.
    """

    number: int
    route: Route
    base: Worker
    members: tuple[int, ...] | None = None
    """Of a process set; None: all."""
    lanes: set[str] = field(default_factory=set)
    """Names of operations that have one."""
    prefix: str = field(init=False)
    """What the names of its operations begin with."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"set{self.number}." if self.number else "")

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks, in the view in force."""
        standing: Standing = self.base.standing
        return standing.ranks if self.members is None else standing.ranks_of(self.members)

    @property
    def rank(self) -> int:
        """This process's place among them."""
        return self.route.worker.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.route.worker.size

    def lane(self, name: str) -> Group:
        """The lane of the operations called `name`, which ranks may use in any order beside other names."""
        group = self.base.group(f"name/{self.number}/{name}", self.ranks)
        self.lanes.add(name)
        return group

    def end_lane(self, name: str) -> None:
        """No rank will use it any more."""
        if name in self.lanes:
            self.lanes.remove(name)
            self.base.group(f"name/{self.number}/{name}", self.ranks).end()

    def end(self) -> None:
        """Nothing goes over these ranks any more, and nothing is in flight: of a process set."""
        for name in list(self.lanes):
            self.end_lane(name)
        self.route.worker.close()

    def root(self, root: int) -> int:
        """The place of world rank `root`. Raises InvalidArgumentError if it has none."""
        if root not in self.ranks:
            where = f"process set {self.number}, ranks {list(self.ranks)}" if self.number else "the world"
            raise InvalidArgumentError(f"root_rank={root} is not a rank of {where} of {self.size}")
        return self.ranks.index(root)
