"""A replica group of one process that trains under a torchft Manager; says each step that it commits, as JSON.

In the environment: LIGHTHOUSE, its address; REPLICA, a name; STOP, a file in which the step may appear with which all
end; VICTIM, the steps after which this process is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, Optimizer

from byteps_like.torchft import ProcessGroupByteps

SECONDS = timedelta(seconds=30)


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def digest(model: torch.nn.Module) -> str:
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()


def main() -> None:
    replica, stop, victim = os.environ["REPLICA"], Path(os.environ["STOP"]), int(os.environ.get("VICTIM", "-1"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupByteps(timeout=timedelta(seconds=10)), min_replica_size=2, replica_id=replica, rank=0,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["inner"])),
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        world_size=1, store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=os.environ["LIGHTHOUSE"],
        hostname="127.0.0.1", timeout=SECONDS, quorum_timeout=SECONDS, connect_timeout=SECONDS,
    )  # fmt: skip
    optimizer = Optimizer(manager, inner)
    torch.manual_seed(sum(map(ord, replica)))
    made = 0
    while not stop.exists() or manager.current_step() < int(stop.read_text() or 1 << 30):
        if made == victim:
            threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGKILL)).start()
        inputs = torch.randn(16, 32)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        works = [manager.allreduce(parameter.grad) for parameter in model.parameters()]
        for work in works:
            work.wait()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            made += 1
            say(event="step", step=before, participants=manager.num_participants())
    say(event="end", step=manager.current_step(), weights=digest(model))
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
