"""One rank of bench/compression/reductions.py: reduces one tensor raw, cast and encoded, in turn; looks at the errors.

Started by the driver with the path of a plan; leaves one JSON line per contender.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import byteps_like.torch as bps
from bench.compression.reductions_plan import BF16, DATA, GLOO, Plan, Result
from byteps_like.dtypes import DType, Op
from byteps_like.torch.job import runtime
from byteps_like.worker.api import TensorSpec
from examples import _gpt

WINDOW = 64
STEPS = 20


class Reducer:
    """A contender's reduction of tensors of one length."""

    def __init__(self, plan: Plan, name: str, numel: int) -> None:
        self._worker: Any = runtime.current().route_for(plan.route).worker
        dtype = DType.BFLOAT16 if name == BF16 else DType.FLOAT32
        self.name = name
        if name != GLOO:
            spec = TensorSpec(f"{name}.{numel}", dtype, (numel,), codec=plan.codecs.get(name, ""))
            (self._declared,) = self._worker.declare([spec])
        self._memory = self._worker.allocate(numel * dtype.itemsize)
        view = (ctypes.c_byte * (numel * dtype.itemsize)).from_address(self._memory.address)
        self.tensor = torch.frombuffer(view, dtype=torch.bfloat16 if name == BF16 else torch.float32)
        self._wide = torch.empty(numel) if name == BF16 else None

    def load(self, source: torch.Tensor) -> None:
        """What is to be reduced: not timed, but for the cast."""
        (self.tensor if self._wide is None else self._wide).copy_(source)

    def reduce(self) -> torch.Tensor:
        """The sum over all ranks, fp32."""
        if self.name == GLOO:
            dist.all_reduce(self.tensor)
            return self.tensor
        if self._wide is not None:
            self.tensor.copy_(self._wide)
        self._worker.push_pull(self._declared, self._memory.address, Op.SUM).wait()
        return self.tensor if self._wide is None else self._wide.copy_(self.tensor)


@functools.lru_cache(maxsize=16)
def make(kind: str, numel: int, rank: int) -> torch.Tensor:
    """The tensor of one rank; not to be written to."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if kind == "gauss":
        return torch.randn(numel, generator=generator)
    if kind == "lognormal":
        wide = torch.randn(numel, generator=generator)
        return torch.sign(wide) * torch.exp(2 * torch.randn(numel, generator=generator))
    return _gradients(numel, rank)


def _gradients(numel: int, rank: int) -> torch.Tensor:
    """Of the GPT of the examples after some steps, the same on all ranks: each has a batch of its own in the last."""
    torch.manual_seed(0)
    corpus = torch.tensor(list(Path(os.__file__).read_bytes()), dtype=torch.uint8) % _gpt.CHARACTERS
    model = _gpt.GPT(WINDOW, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        last = step == STEPS - 1
        generator = torch.Generator().manual_seed(rank if last else 100 + step)
        starts = torch.randint(len(corpus) - WINDOW - 1, (16,), generator=generator)
        windows = torch.stack([corpus[start : start + WINDOW + 1] for start in starts]).long()
        optimizer.zero_grad()
        scores = model(windows[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(scores, windows[:, 1:].flatten()).backward()
        if not last:
            optimizer.step()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return flat[:numel]


def nmse(reducer: Reducer, kind: str, numel: int, rank: int, size: int) -> float:
    """Squared error of the sum relative to its own square."""
    true = torch.zeros(numel, dtype=torch.float64)
    for other in range(size):
        true += make(kind, numel, other).double()
    reducer.load(make(kind, numel, rank))
    return float(((reducer.reduce().double() - true) ** 2).sum() / (true**2).sum())


def wire(interface: str) -> tuple[int, int]:
    """Bytes that this host's card has sent and received."""
    folder = Path("/sys/class/net") / interface / "statistics"
    return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())


def timed(plan: Plan, rank: int) -> dict[str, Result]:
    """All contenders in turn, `repeats` times after one to warm up."""
    numel = plan.size // 4
    source = make(DATA[0], numel, rank)
    reducers = [Reducer(plan, name, numel) for name in plan.contenders]
    results = {name: Result(name, [], [], 0, 0, {}) for name in plan.contenders}
    for turn in range(plan.repeats + 1):
        for reducer in reducers:
            reducer.load(source)
            dist.barrier()
            before, start = wire(plan.interface), time.perf_counter()
            reducer.reduce()
            end, after = time.perf_counter(), wire(plan.interface)
            dist.barrier()
            if turn:
                result = results[reducer.name]
                result.starts.append(start)
                result.ends.append(end)
                result.wire_sent, result.wire_received = (b - a for a, b in zip(before, after, strict=True))
    return results


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    rank, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    dist.init_process_group("gloo", init_method=f"file://{plan.folder}/rendezvous", rank=rank, world_size=size)
    bps.init()
    results = timed(plan, rank)
    numel = plan.error_size // 4
    for name in plan.contenders:
        reducer = Reducer(plan, name, numel)
        results[name].nmse = {kind: nmse(reducer, kind, numel, rank, size) for kind in DATA}
    lines = (json.dumps(asdict(result)) + "\n" for result in results.values())
    (Path(plan.folder) / f"rank{rank}.jsonl").write_text("".join(lines))
    bps.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
