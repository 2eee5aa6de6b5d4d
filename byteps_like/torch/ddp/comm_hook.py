"""A communication hook for torch's own DistributedDataParallel, whose buckets our servers or collectives average."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, InvalidArgumentError
from byteps_like.torch.compression.rules import Rules, rules_for_averages, rules_of
from byteps_like.torch.ddp.hook_buckets import HookBucket
from byteps_like.torch.device import devices
from byteps_like.torch.device.buffer import DeviceBuffer
from byteps_like.torch.device.tensors import spec_of
from byteps_like.torch.gradients.coding import Memory
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Request, Route
from byteps_like.torch.local.arenas import ArenaShares, find, may_share
from byteps_like.worker.api import Handle

if TYPE_CHECKING:
    from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch does not list it in __all__


class DDPHookState:
    """The state of `ddp_hook` for one model. Each model needs its own, created in the same order on all ranks.

    `route` and `process_set` are those of DistributedOptimizer; the process set must have the ranks of the model's
    process group. `compression` is the same, except that rules by name are not supported, because DDP passes no names.
    Error feedback is off by default, because the optimizer is unknown here. `error` is the typed error after backward
    has raised one.
    """

    def __init__(self, route: str = "auto", compression: object = None, process_set: object = None) -> None:
        self._compression = compression
        if compression is not None:
            _checked(rules_of(compression))
        self.error: BytePSLikeError | None = None
        # Of the program's thread: with a model on a device, DDP calls the hook on a thread of autograd's.
        self._runtime = _runtime.if_installed()
        self._wanted, self._process_set = route, process_set
        self._route: Route | None = None
        self._label = ""
        self._rules = Rules()
        self._buckets: dict[int, HookBucket] = {}
        self._behind: dict[int, tuple[str, Handle]] = {}
        self._layouts = 0
        self._shares: dict[str, ArenaShares | None] = {}
        self._left: dict[int, Memory] = {}

    @property
    def route(self) -> str:
        """Which way gradients go: "server", "allreduce" or "none"; once the job has been joined."""
        return self._find_route().name

    def _find_route(self) -> Route:
        runtime = _runtime.current()
        if self._route is None or runtime is not self._runtime:
            self._runtime = runtime
            self._rules = _checked(rules_for_averages(self._compression))
            self._buckets.clear()
            self._behind.clear()
            self._shares.clear()
            scope = runtime.scope(self._process_set)
            self._route = scope.route if scope.number else runtime.route_for(self._wanted)
            self._label = f"ddp.{runtime.count(f'{scope.prefix}ddp')}"
            self._route.report(self._label)
        return self._route

    def at_home(self) -> contextlib.AbstractContextManager[object]:
        """Within the block this thread has the runtime that the state was made with, as long as that lasts."""
        own = self._runtime
        return contextlib.nullcontext() if own is None or own.closed else _runtime.using(own)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Within the block an error is noted before it is passed on."""
        try:
            yield
        except BytePSLikeError as error:
            self.error = error
            raise

    def start(self, bucket: GradBucket) -> tuple[Handle, Callable[[], object], bool]:
        """Starts averaging `bucket`; what is in flight, what is to be done when it has landed, and whether streams may
        wait for it: not in the first round, in which kernels are loaded, for which drivers may wait for all streams."""
        device = devices.of(bucket.buffer())
        if device is not None:
            devices.check_not_capturing(device, "ddp_hook")
        route, index = self._find_route(), bucket.index()
        if not self._rules.codecs:
            return self._start_whole(route, index, bucket.buffer())
        own, gradients = self._bucket(route, bucket), bucket.gradients()
        again = self._catch_up(index, own.name)
        handle = own.start(gradients, index)
        self._behind[index] = own.name, handle
        return handle, partial(own.land, gradients), again

    def _catch_up(self, index: int, name: str) -> bool:
        """The host waits for the bucket's round before, which streams may have waited for in its place: raises what it
        failed with. Whether that was of the same name."""
        before, handle = self._behind.pop(index, ("", None))
        if handle is not None:
            handle.wait()
        return before == name

    def _start_whole(self, route: Route, index: int, buffer: torch.Tensor) -> tuple[Handle, Callable[[], object], bool]:
        cast = self._rules.of("", buffer).cast
        wire = buffer.to(cast.wire_dtype(buffer.dtype))
        # DDP puts the parameters into other buckets after the first step: another size is another name.
        name = f"{self._label}.bucket{index}.{wire.dtype}.{wire.numel()}".replace("torch.", "")
        (declared,) = route.declare([spec_of(name, wire)])
        # The next forward waits for all buckets, so none goes before those that were ready earlier.
        again = self._catch_up(index, name)
        address, place = _runtime.current().place(wire)
        handle = route.push_pull(declared, address, Op.AVERAGE, Request(place=self._shared(route, place)))
        self._behind[index] = name, handle
        return handle, (lambda: None) if wire is buffer else partial(_copy_back, buffer, wire), again

    def _shared(self, route: Route, place: DeviceBuffer | None) -> DeviceBuffer | None:
        """With how the ranks of a host share what is there: DDP gives the buckets in one order on all ranks."""
        runtime = _runtime.current()
        if place is None or not may_share(runtime, route.worker, place.stage.device):
            return place
        device = place.stage.device
        if device.name not in self._shares:
            self._shares[device.name] = find(runtime, route.worker, device, f"{self._label}.{len(self._shares)}")
        return replace(place, shares=self._shares[device.name])

    def _bucket(self, route: Route, bucket: GradBucket) -> HookBucket:
        """As it is cut now. What codecs remember goes with the parameters when they are dealt out anew."""
        index, parameters = bucket.index(), bucket.parameters()
        known = self._buckets.get(index)
        if known is None or known.parameters != [id(item) for item in parameters]:
            if known is not None:
                for load, _ in itertools.chain.from_iterable(item.loads for item in self._buckets.values()):
                    load.leave(self._left)
                self._buckets.clear()
                self._layouts += 1
            known = HookBucket(route, f"{self._label}.bucket{index}.{self._layouts}", self._rules, parameters)
            self._buckets[index] = known
            for load, _ in known.loads:
                load.follow(self._left)
        return known


def _copy_back(buffer: torch.Tensor, wire: torch.Tensor) -> None:
    buffer.copy_(wire)
    device = devices.of(wire)
    if device is not None:
        device.keep(wire, device.current())  # made on the stream of backward, and this is another


def _checked(rules: Rules) -> Rules:
    if rules.by_name:
        raise InvalidArgumentError(
            "compression: torch's DDP passes no parameter names to hooks; give one codec, or use"
            " byteps_like.torch.DistributedDataParallel or DistributedOptimizer"
        )
    if any(way.low_rank or way.by_rows or way.auto or way.warmup for _, way in rules.ways):
        raise InvalidArgumentError(
            "compression: PowerSGD, rows, auto and codecs with a warm-up need DistributedOptimizer"
        )
    return rules


def ddp_hook(state: DDPHookState | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages DDP's gradients over all ranks: `model.register_comm_hook(bps.DDPHookState(), bps.ddp_hook)`.

    Needs `init()`. torch.distributed may use any backend, which serves DDP's bookkeeping only. Buckets are reduced in
    place while backward continues. As with NCCL, the streams that wait for the future wait for buckets on a device;
    with the setting `stream_waits`, after the first round the host does not. Errors are raised by this or the next
    `backward()` as RuntimeError with the same text; `state.error` is the typed error. `state` may be None if only one
    model is trained.
    """
    known = state if state is not None else _default_state()
    buffer = bucket.buffer()
    with known.noting(), known.at_home():
        handle, finish, streams_wait = known.start(bucket)
    ended: torch.futures.Future[Any] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])

    def land(_: object) -> torch.Tensor:
        with known.noting():
            getattr(handle, "block", handle.wait)()
        finish()
        return buffer

    device = devices.of(buffer)
    if streams_wait and device is not None and device.gate() is not None:
        ended.set_result(None)  # `land` queues on the future's own stream that it waits
        return ended.then(land)
    # DDP dies of a Python future with an exception set; one that `then` makes fails as C++ expects.
    result = ended.then(land)
    _waiter.put(handle, ended)
    return result


# DDP compares annotations with classes, and these are strings; it takes hooks that have none.
ddp_hook.__annotations__ = {}


def _default_state() -> DDPHookState:
    """Of hooks that were registered without one."""
    return _runtime.current().of(DDPHookState)


class _Waiter:
    """A thread that waits for handles in the order of buckets, and completes their futures."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """With nothing in flight; also in a forked child, where the thread is not."""
        self._flights: queue.SimpleQueue[tuple[Handle, torch.futures.Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, handle: Handle, ended: torch.futures.Future[Any]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="byteps_like-ddp-hook", daemon=True)
                self._thread.start()
        self._flights.put((handle, ended))

    def _run(self) -> None:
        while True:
            handle, ended = self._flights.get()
            # Whatever it is, torch's errors of the device, too: it is raised again to whoever waits for the future.
            with contextlib.suppress(Exception):
                handle.wait()
            ended.set_result(None)
            del handle, ended  # or they would live, with their tensors, until the next ones come


_waiter = _Waiter()

os.register_at_fork(after_in_child=_waiter.begin)
