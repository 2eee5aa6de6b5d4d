"""One rank of a benchmark of collectives: every case by every contender in turn, checked before and after.

    python -m byteps_like.bench.rank PLAN

Started by mpirun, or by the driver with BENCH_RANK. Leaves one JSON line per sample or remark in the plan's folder.
Calls follow one another without a barrier, as in nccl-tests; a barrier that belongs to no contender precedes a sample.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from byteps_like.bench.board import PATIENCE, Board
from byteps_like.bench.buffers import Buffers
from byteps_like.bench.contenders import Contender, DeepSpeed, Direct, Mpi, Run, TorchGroup, Unsupported
from byteps_like.bench.ours import make_c10d, make_native
from byteps_like.bench.plan import C10D, DEEPSPEED, DIRECT, GLOO, MPI, NATIVE, BenchPlan, BenchSample, Case, Remark
from byteps_like.errors import BytePSLikeError

SAMPLE_SECONDS = 0.01  # calls are put together until a sample takes about so long
MOST_CALLS = 2000
MOST_SAMPLES = 40
LEAST_SAMPLES = 5
WARM_UPS = 3


class Rank:
    """The rank's state and what it has recorded."""

    def __init__(self, plan: BenchPlan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.board = Board(plan.folder, rank, plan.ranks)
        self.records: list[BenchSample | Remark] = []
        self.contenders: dict[str, Contender] = {}

    def join(self) -> None:
        """Makes the contenders of the plan, in its order: MPI first of all, since it wants to start before others."""
        makers: dict[str, Callable[[], Contender]] = {
            MPI: Mpi,
            GLOO: lambda: TorchGroup(dist.new_group(backend="gloo")),
            NATIVE: lambda: make_native(self.plan, self.rank),
            C10D: make_c10d,
            DEEPSPEED: lambda: DeepSpeed(self.plan, self.rank),
            DIRECT: lambda: Direct(self.plan, self.rank, self.board),
        }
        for name in sorted(self.plan.contenders, key=lambda name: name != MPI):
            self.contenders[name] = makers[name]()

    def measure(self) -> None:
        """All cases. Raises RuntimeError for a wrong result, which ends the benchmark."""
        for number, case in enumerate(self.plan.cases()):
            shared = Buffers.make(case, self.rank, self.plan.ranks, lambda count: torch.empty(count))
            runs = self._prepare(number, case, shared)
            self._sample(number, {name: run for name, (run, _) in runs.items()})
            for name, (run, buffers) in runs.items():
                self._check(name, run, buffers)

    def _prepare(self, number: int, case: Case, shared: Buffers) -> dict[str, tuple[Run, Buffers]]:
        runs: dict[str, tuple[Run, Buffers]] = {}
        for name, contender in self.contenders.items():
            buffers = contender.buffers(case) or shared
            try:
                run = contender.run(buffers)
                self._check(name, run, buffers)
            except Unsupported as why:
                self.records.append(Remark(number, name, str(why)))
            else:
                runs[name] = run, buffers
        return runs

    def _check(self, name: str, run: Run, buffers: Buffers) -> None:
        buffers.fill()
        self.board.barrier()
        run(1)
        self.board.barrier()
        wrong = self.board.most(buffers.wrong())
        if wrong:
            raise RuntimeError(f"{name}: up to {wrong:.0f} elements of a rank are wrong after {buffers.case}")
        buffers.quiet()

    def _sample(self, number: int, runs: dict[str, Run]) -> None:
        calls = {name: self._calls(run) for name, run in runs.items()}
        seconds = sum(count * estimate for count, estimate in calls.values())
        samples = int(min(MOST_SAMPLES, max(LEAST_SAMPLES, self.plan.seconds / max(seconds, 1e-9))))
        for _ in range(samples):
            for name, run in runs.items():
                count = calls[name][0]
                self.board.barrier()
                before, start = self._sent(), time.perf_counter()
                run(count)
                end = time.perf_counter()
                self.board.barrier()
                self.records.append(BenchSample(number, name, start, end, count, self._sent() - before))

    def _calls(self, run: Run) -> tuple[int, float]:
        """Calls per sample, and seconds per call, the same on all ranks.

        By the best of some trials: on a busy machine a rank may have to wait for its CPU. Of short calls in a batch, so
        that to come out of the barrier is no part of it.
        """
        count = WARM_UPS
        for _ in range(2):
            trials = []
            for _ in range(WARM_UPS):
                self.board.barrier()
                start = time.perf_counter()
                run(count)
                trials.append((time.perf_counter() - start) / count)
            estimate = self.board.most(min(trials))
            count = int(min(MOST_CALLS, max(1, SAMPLE_SECONDS / estimate)))
        return count, estimate

    def _sent(self) -> int:
        if not self.plan.interface:
            return 0
        return int(Path(f"/sys/class/net/{self.plan.interface}/statistics/tx_bytes").read_text())

    def save(self) -> None:
        """One JSON line per record."""
        lines = [json.dumps(asdict(record)) + "\n" for record in self.records]
        (Path(self.plan.folder) / f"rank{self.rank}.jsonl").write_text("".join(lines))


def main() -> None:
    """See the module."""
    plan = BenchPlan.load(sys.argv[1])
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("BENCH_RANK", "0")))
    torch.set_num_threads(1)
    if plan.bind:  # before any thread is started
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if plan.addresses:
        os.environ["BYTEPS_LIKE_HOST"] = plan.addresses[rank]
    bench = Rank(plan, rank)
    # Files are shared even between the hosts of a lab, so nobody needs a port.
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.folder}/rendezvous", rank=rank, world_size=plan.ranks,
        timeout=timedelta(seconds=PATIENCE),
    )  # fmt: skip
    try:
        bench.join()
        bench.measure()
    except (BytePSLikeError, RuntimeError) as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # the others are in the middle of something: mpirun and the driver end them
    bench.save()
    bench.board.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
