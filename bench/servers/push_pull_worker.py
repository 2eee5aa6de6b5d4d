"""One rank of bench/servers/push_pull.py: times push_pull and gloo's all_reduce in turn on the same bytes, checks both.

Started by the driver with the path of a plan; leaves one JSON line per operation. Times are ends and starts on the
machine's monotonic clock, which all ranks share, so the driver can tell the whole operation's time.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from bench.report import interleave
from bench.servers.push_pull_plan import OURS, RING, Operation, Plan
from bench.servers.system_calls import SystemCalls

LONG = 4 << 20
LOOKS = 10
ATTENTION = 0.02  # seconds in which perf begins to count


@dataclass
class Bench:
    """The rank's state: its place in the world and what it has recorded."""

    plan: Plan
    rank: int
    size: int
    servers: list[int] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    look: str = ""
    """Operation.look of those that are made."""
    calls: dict[str, SystemCalls] = field(default_factory=dict)
    """By contender, while they are counted."""

    def run(self) -> None:
        """Every size in every kind of memory; a wrong sum ends the benchmark."""
        for size, burst, repeats in zip(self.plan.sizes, self.plan.bursts, self.plan.repeats, strict=True):
            for memory in self.plan.memory:
                tensor = self._tensor(memory, size)
                contenders = {name: self._contender(name, memory, tensor, burst) for name in self.plan.contenders}
                # TCP connections need a few short operations to find out what the path takes; both sides get them.
                interleave(contenders, repeats, warm_up=2 if size > LONG else 10)
                self.operations = self._without_warm_up(size, memory, repeats)
                for self.look in ("use", "calls"):
                    self._look(contenders, min(repeats, LOOKS))
                self.look = ""

    def _look(self, contenders: dict[str, Callable[[], float]], repeats: int) -> None:
        first = len(self.operations)
        if self.look == "calls":
            everybody = [*beside("worker"), *self.servers] if self.rank == 0 else []
            self.calls = {name: SystemCalls(everybody) for name in contenders}
        interleave(contenders, repeats, warm_up=0)
        totals = {name: calls.total() for name, calls in self.calls.items()}
        self.calls = {}
        for operation in self.operations[first:]:
            total = totals.get(operation.contender)
            operation.calls = None if total is None else total / repeats

    @contextmanager
    def _counting_calls(self, contender: str) -> Iterator[None]:
        """All ranks begin at once, when perf counts: who comes sooner would poll for the others meanwhile."""
        begin = time.monotonic() + ATTENTION
        with self.calls[contender].counted() if self.calls else nullcontext():
            time.sleep(max(0.0, begin - time.monotonic()) if self.calls else 0.0)
            yield

    def _without_warm_up(self, size: int, memory: str, repeats: int) -> list[Operation]:
        kept = [item for item in self.operations if (item.size, item.memory) != (size, memory)]
        recent = [item for item in self.operations if (item.size, item.memory) == (size, memory)]
        return kept + recent[-repeats * len(self.plan.contenders) :]

    def _tensor(self, memory: str, size: int) -> torch.Tensor:
        if memory == "private" or OURS not in self.plan.contenders:
            return torch.empty(size // 4)
        block = session_worker().allocate(size)
        self.keep.append(block)
        view = (ctypes.c_byte * size).from_address(block.address)
        return torch.frombuffer(view, dtype=torch.float32)

    def _contender(self, name: str, memory: str, tensor: torch.Tensor, burst: int) -> Callable[[], float]:
        pattern = torch.arange(tensor.numel(), dtype=torch.float32).remainder_(1021)
        expected = (pattern * self.size + sum(range(self.size))) * float(self.size) ** (burst - 1)
        # Sums of sums are exact for powers of two.
        tolerance = 0.0 if self.size & (self.size - 1) == 0 else burst * 1e-6
        reduce = _reduction(name, f"{memory}-{tensor.nbytes}")

        def operate() -> float:
            torch.add(pattern, self.rank, out=tensor)
            operation = Operation(name, memory, tensor.nbytes, burst, look=self.look)
            dist.barrier()
            with self._counted(operation), self._counting_calls(name):
                operation.start = time.perf_counter()
                for _ in range(burst):
                    reduce(tensor)
                operation.end = time.perf_counter()
            if wrong := int((~torch.isclose(tensor, expected, rtol=tolerance, atol=0.0)).sum()):
                raise RuntimeError(f"{name}: {wrong} of {tensor.numel()} sums are wrong at {tensor.nbytes} bytes")
            self.operations.append(operation)
            return operation.end - operation.start

        return operate

    @contextmanager
    def _counted(self, operation: Operation) -> Iterator[None]:
        before = self._counters(operation.contender)
        yield
        after = self._counters(operation.contender)
        moved = {name: after[name] - before[name] for name in after}
        for name, value in moved.items():
            setattr(operation, name, value)

    def _counters(self, contender: str) -> dict[str, float]:
        statistics = Path("/sys/class/net") / self.plan.interface / "statistics"
        counters = {
            "wire_sent": int((statistics / "tx_bytes").read_text()),
            "wire_received": int((statistics / "rx_bytes").read_text()),
            **_segments(),
            **(_used([os.getpid(), *(self.servers if contender == OURS else [])]) if self.look == "use" else {}),
        }
        if contender == OURS:
            stats = session_worker().stats()
            counters |= {name: stats.get(name, 0) for name in ("payload_sent", "payload_received", "bounced")}
        return counters

    def save(self) -> None:
        """One JSON line per operation."""
        lines = (json.dumps(asdict(operation)) + "\n" for operation in self.operations)
        (Path(self.plan.folder) / f"rank{self.rank}.jsonl").write_text("".join(lines))


def beside(role: str) -> list[int]:
    """The processes of this job on this machine, also on other hosts of a lab, that have this role: started by what has
    started this one."""
    everybody = psutil.Process(os.getppid()).children()
    return [one.pid for one in everybody if one.environ().get("BYTEPS_LIKE_ROLE") == role]


def _used(processes: list[int]) -> dict[str, float]:
    """By all threads of these processes."""
    sleeps, nanoseconds = 0, 0
    for thread in [thread for one in processes for thread in Path(f"/proc/{one}/task").iterdir()]:
        with suppress(FileNotFoundError, ProcessLookupError):  # it may have ended meanwhile
            (slept,) = re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", (thread / "status").read_text(), re.M)
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
            sleeps += int(slept)
    return {"sleeps": sleeps, "processor": nanoseconds / 1e9}


def _segments() -> dict[str, int]:
    """Of all TCP connections of this host."""
    names, values = [
        line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"
    ]
    counted = dict(zip(names, values, strict=True))
    return {"segments": int(counted["OutSegs"]), "again": int(counted["RetransSegs"])}


def session_worker() -> Any:
    """The runtime below byteps_like.torch: the owner of arena memory and of the counters."""
    from byteps_like.torch.job import runtime

    return runtime.current().worker


def _reduction(contender: str, name: str) -> Callable[[torch.Tensor], None]:
    if contender == OURS:
        return _push_pull(name)
    return _ring(name) if contender == RING else _all_reduce


def _ring(name: str) -> Callable[[torch.Tensor], None]:
    from byteps_like.collectives.api import CallOptions
    from byteps_like.dtypes import DType, Op

    group, ring = session_worker().group(f"ring-{name}"), CallOptions(algorithm="ring")

    def reduce(tensor: torch.Tensor) -> None:
        place = tensor.data_ptr()
        group.all_reduce(place, place, tensor.numel(), DType.FLOAT32, Op.SUM, ring).wait()

    return reduce


def _push_pull(name: str) -> Callable[[torch.Tensor], None]:
    import byteps_like.torch as bps

    def reduce(tensor: torch.Tensor) -> None:
        bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name=name))

    return reduce


def _all_reduce(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    rank, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    # Files are shared even between the hosts of a lab, so nobody needs a port.
    dist.init_process_group("gloo", init_method=f"file://{plan.folder}/rendezvous", rank=rank, world_size=size)
    bench = Bench(plan, rank, size, beside("server") if rank == 0 else [])
    if OURS in plan.contenders:
        import byteps_like.torch as bps

        bps.init()
        bench.run()
        bps.shutdown()
    else:
        bench.run()
    bench.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
