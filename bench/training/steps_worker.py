"""One rank of bench/training/steps.py: trains emulated models in each contender's way, in turn.

Started by the driver with the path of a plan; leaves one JSON line per contender, model and round. Every contender's
weights are checked against the closed form at the end.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import byteps_like.torch as bps
from bench.emulated import EmulatedLayer, emulate
from bench.training.plain_servers import PlainServers
from bench.training.steps_plan import PLAIN, VARIANTS, Measured, Plan, Variant
from byteps_like.torch.job import runtime
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import Declared, Handle, Links

RATE = 0.5


class Ordered:
    """An observer of a route that lets go first what the next forward needs first."""

    def push_pull(self, route: Route, declared: Declared, address: int, op: Any, how: Request) -> Handle:
        """Launches it with the priority that it would have without a barrier."""
        return route.launch(declared, address, op, replace(how, priority=how.parts.start if how.parts else 0))


@contextmanager
def by_priority(route: Route | None) -> Iterator[None]:
    """Within the block priorities hold on `route` even under the barrier."""
    if route is None:
        yield
        return
    before, route.observer = route.observer, Ordered()
    try:
        yield
    finally:
        route.observer = before


class Contender:
    """A model with its optimizer, or whatever is to train it."""

    def __init__(self, name: str, plan: Plan, model: str, groups: dict[str, Any]) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.name, self.model, self.made = name, model, 0
        self._module = emulate(plan.workload(model), float(rank + 1))
        self._wrapped: torch.nn.Module = self._module
        self._ordered: Route | None = None
        self._variant = Variant()
        self._deferred: bps.DeferredBackward | None = None
        plain = torch.optim.SGD(self._module.parameters(), lr=RATE)
        route, _, way = name.partition(" ")
        if way == "DDP":
            self._wrapped = torch.nn.parallel.DistributedDataParallel(
                self._module, process_group=groups[route], bucket_cap_mb=plan.bucket_mb, gradient_as_bucket_view=True
            )
            self._optimizer: Any = plain
        elif name == PLAIN:
            self._optimizer = PlainServers(plain, plan.plain, size)
        else:
            self._optimizer = self._distributed(plain, "allreduce" if route == "ring" else "server", way)

    def _distributed(self, plain: torch.optim.Optimizer, route: str, way: str) -> Any:
        way, _, variant = way.partition(", ")
        way, _, number = way.partition(" ")
        crosses = way in ("cross-barrier", "deferred")
        more = {"cross_barrier": True, "model": self._module} if crosses else {}
        optimizer = bps.DistributedOptimizer(plain, self._module.named_parameters(), route=route, **more)
        reducer = optimizer._distribution.reducer
        self._ordered, self._variant = reducer.route if way == "priorities" else None, VARIANTS[variant]
        if self._variant.partition_bytes:
            reducer.recut(reducer.route, self._variant.partition_bytes)
        if way == "deferred":
            first_k: Any = int(number) if number else "auto"
            self._deferred = bps.DeferredBackward(self._module, first_k, layers=(EmulatedLayer,), steps=2)
        return optimizer

    def run(self, steps: int) -> float:
        """Seconds per step."""
        with by_priority(self._ordered), self._links():
            start = time.perf_counter()
            for _ in range(steps):
                self._optimizer.zero_grad()
                self._wrapped(torch.zeros(1, requires_grad=True)).sum().backward()
                self._optimizer.step()
            self.made += steps
            return (time.perf_counter() - start) / steps

    @contextmanager
    def _links(self) -> Iterator[None]:
        worker: Any = runtime.current().worker
        worker.use(Links(credit_bytes=self._variant.credit_bytes))
        try:
            yield
        finally:
            worker.use(Links())

    def settle(self) -> None:
        """Searches what is to be searched, on all ranks alike."""
        while self._deferred is not None and self._deferred.searching:
            self.run(1)

    @property
    def first_k(self) -> int:
        """Of DeferredBackward; -1 without."""
        return -1 if self._deferred is None else self._deferred.first_k

    def land(self) -> None:
        """Waits for what the last step has left in flight: the first steps of a turn did the same for the turn."""
        if "cross-barrier" in self.name or "deferred" in self.name:
            self._optimizer.synchronize()

    def check(self, size: int) -> None:
        """All weights are what `made` steps with the mean of 1..size make of zero."""
        expected = -RATE * self.made * (size + 1) / 2
        for name, parameter in self._module.named_parameters():
            if not bool((parameter == expected).all()):
                raise RuntimeError(f"{self.name}, {self.model}: {name} is not {expected} everywhere")

    def close(self) -> None:
        """Gives its memory back."""
        if self._deferred is not None:
            self._deferred.detach()
        with suppress(AttributeError):
            self._optimizer.close()


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    rank, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{plan.folder}/rendezvous", rank=rank, world_size=size)
    bps.init()
    groups = {"gloo": dist.group.WORLD, "byteps": dist.new_group(backend="byteps")}
    found = []
    for model in plan.models:
        found += measure(plan, model, lambda name, of=model: Contender(name, plan, of, groups), size)
    lines = (json.dumps(asdict(item)) + "\n" for item in found)
    (Path(plan.folder) / f"rank{rank}.jsonl").write_text("".join(lines))
    bps.shutdown()
    dist.destroy_process_group()


def measure(plan: Plan, model: str, make: Callable[[str], Contender], size: int) -> list[Measured]:
    """All contenders in turn, `rounds` times; the first steps after a change aren't counted."""
    contenders = [make(name) for name in plan.contenders]
    found = []
    for _ in range(plan.rounds):
        for contender in contenders:
            contender.settle()
            contender.run(plan.warm_up)
            before = time.process_time()
            seconds = contender.run(plan.steps)
            busy = (time.process_time() - before) / plan.steps
            found.append(Measured(model, contender.name, seconds, busy, contender.first_k))
            contender.land()
            dist.barrier()
    for contender in contenders:
        contender.check(size)
        contender.close()
    del contenders
    gc.collect()
    return found


if __name__ == "__main__":
    main()
