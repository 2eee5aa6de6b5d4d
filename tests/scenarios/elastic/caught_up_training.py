"""An elastic training that others join while it runs. Prints JSON, a line per event.

Steps go on until there have been `GOAL` in a world of `SIZE`, of those alone that all have made since there is the
file `FROM`, if one is named. `KIND` is how: "adam", with clipped gradients; "ddp", a module whose gradients are
averaged in backward, with a rate that changes; "crossing", whose steps can't be followed.
With `UNCOMMITTED` nothing is kept. With `TOLD` each says so when it makes a step, be it one of the others' again. A
newcomer with `SPOIL` adds something to its weights in each step; one with `SLOW`, a path, takes the state of the
others, but does not get on until there is such a file. While there is a file `PAUSE` nobody makes steps.
"""

import json
import os
import time
from pathlib import Path

import torch

import byteps_like.torch as bps

KIND, GOAL, SIZE = os.environ["KIND"], int(os.environ["GOAL"]), int(os.environ["SIZE"])


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


def weights() -> str:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).numpy().tobytes().hex()[-64:]


bps.init()
say(event="came", rank=bps.rank(), size=bps.size())
torch.manual_seed(os.getpid())  # rank 0's weights count
model = torch.nn.Sequential(torch.nn.Linear(16, 2000), torch.nn.BatchNorm1d(2000), torch.nn.Linear(2000, 16))
if KIND == "ddp":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model = bps.DistributedDataParallel(model)
else:
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(
        plain, model.named_parameters(), cross_barrier=KIND == "crossing", model=model if KIND == "crossing" else None
    )
if "TOLD" in os.environ:
    optimizer.register_step_post_hook(lambda *_: say(event="made"))
if "SPOIL" in os.environ:
    optimizer.register_step_post_hook(lambda *_: next(model.parameters()).data.add_(1.0))
if "SLOW" in os.environ:

    def hold(*_: object) -> None:
        say(event="held")
        while not Path(os.environ["SLOW"]).exists():
            time.sleep(0.05)

    model.register_load_state_dict_pre_hook(hold)


def make_step(number: int) -> None:
    generator = torch.Generator().manual_seed(1000 * number + bps.rank())
    optimizer.zero_grad()
    model(torch.randn(8, 16, generator=generator)).square().mean().backward()
    if KIND == "adam":
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()
    if KIND == "ddp":
        optimizer.param_groups[0]["lr"] *= 0.99


def counts() -> bool:
    """Whether this step does: alike on all ranks."""
    if "FROM" not in os.environ:
        return True
    return bps.push_pull(torch.tensor([float(Path(os.environ["FROM"]).exists())]), name="counts").item() == 1.0


def pause() -> None:
    file = Path(os.environ["PAUSE"])
    if bps.broadcast_object(file.exists(), 0):  # all ranks, before the same step
        say(event="paused")
        while file.exists():
            time.sleep(0.05)


@bps.elastic.run
def train(state):
    moved = bps.stats()["payload_received"]
    say(event="began", rank=bps.rank(), size=bps.size(), step=state.step, moved=moved, weights=weights())
    while state.last < GOAL:
        if "PAUSE" in os.environ:
            pause()
        make_step(state.step)
        time.sleep(0.02)
        state.step += 1
        state.last += bps.size() == SIZE and counts()
        say(event="step", step=state.step)
        state.check_host_updates() if "UNCOMMITTED" in os.environ else state.commit()


state = bps.elastic.TorchState(model, optimizer, step=0, last=0)
train(state)
say(event="end", weights=weights(), step=state.step)
bps.shutdown()
