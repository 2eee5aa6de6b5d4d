"""One rank of a job of bench/consistency/jobs.py: trains in all ways in turn, and leaves what it did as JSON.

Computing is a sleep: ranks share the machine's cores. Started with the path of a plan.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

import byteps_like.torch as bps
from bench.consistency.trainees import Trainee, trainee
from bench.consistency.turns import RankTurn
from bench.consistency.ways import JOBS, Plan


def moved() -> tuple[int, int]:
    """Payload that this rank has sent and received."""
    stats = bps.stats()
    return int(stats["payload_sent"]), int(stats["payload_received"])


class Recorder:
    """Steps of one turn, as they are made."""

    def __init__(self, one: Trainee) -> None:
        self.turn = RankTurn()
        self._trainee = one
        self._sent, self._received = moved()
        self._began = time.perf_counter()

    def step(self, seconds: float) -> None:
        """Computes for so long, then lets weights travel."""
        self._trainee.compute(seconds)
        computed = time.perf_counter()
        self._trainee.step()
        landed = time.perf_counter()
        self.turn.landed.append(landed - self._began)
        self.turn.blocked.append(landed - computed)
        self.turn.versions.append(self._trainee.version)
        self._count(*moved())

    def finish(self) -> None:
        """What was still travelling after the last step is its own."""
        if self.turn.sent:
            sent, received = moved()
            self.turn.sent[-1] += sent - self._sent
            self.turn.received[-1] += received - self._received

    def _count(self, sent: int, received: int) -> None:
        self.turn.sent.append(sent - self._sent)
        self.turn.received.append(received - self._received)
        self._sent, self._received = sent, received


class Turn:
    """One turn of one way, on this rank."""

    def __init__(self, plan: Plan, turn: int, name: str) -> None:
        self._plan, self._turn, self._name = plan, turn, name
        self._way, scenario = JOBS[plan.job].ways[name], JOBS[plan.job].scenario
        self._versions = self._way.versions(plan.steps)
        self._steps = self._way.steps(scenario, bps.rank(), plan.steps)
        self._trainee = trainee(f"{name}.{turn}", self._way, plan.nbytes, self._versions)

    def run(self) -> RankTurn:
        """All its steps."""
        bps.barrier()
        self._recorder = Recorder(self._trainee)
        step = 0
        while self._more(step):
            self._recorder.step(self._plan.seconds(self._turn, bps.rank(), step, self._way.parts))
            step += 1
        self._trainee.close()
        bps.barrier()
        self._recorder.turn.ages = self._trainee.ages()
        self._recorder.finish()
        return self._recorder.turn

    def _more(self, step: int) -> bool:
        if not self._steps or self._versions is None:
            return step < self._steps
        return self._trainee.version < self._versions


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(1)
    bps.init()
    turns = [{name: asdict(Turn(plan, turn, name).run()) for name in plan.ways} for turn in range(plan.turns)]
    (Path(plan.folder) / f"rank{bps.rank()}.json").write_text(json.dumps(turns))
    bps.barrier()
    bps.shutdown()


if __name__ == "__main__":
    main()
