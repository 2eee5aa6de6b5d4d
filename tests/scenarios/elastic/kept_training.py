"""An elastic training whose servers keep the weights, with Adam's state, counts in a Store, rows in a KV, and a Table.

Prints JSON. `GOAL` are the sizes of the worlds to come, after the last of which it makes five more steps; `VICTIM` is a
size: the process kills itself in the third step of a world of so many, or later, once there is a cut if there are to
be some; `BETWEEN`, likewise: rank 0 does so as it leaves such a world, or, with `KILL`, kills the process of that
number instead; `INTO`, likewise: rank 0 does so before it has taken over what was kept; `DRAINS`, likewise: it asks
server 0 to leave then, once. `CUTS`: a directory for one of each fourth commit, `ON_LOSS`: what the death of a rank
means, `REPLICAS`: how many servers have each value, `ELEMENTS`: how many counts there are. All but the first may be
left out.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.control.calls.client import order_drain
from byteps_like.control.members.drains import DrainOrder
from byteps_like.control.types import MemberRole
from byteps_like.torch.elastic import running
from byteps_like.torch.elastic.rejoining import rejoin

GOAL = [int(size) for size in os.environ["GOAL"].split()]
ELEMENTS = int(os.environ.get("ELEMENTS", "1001"))
LOSSES = {"on_loss": str, "replicas": int}
LOSSES = {name: of(os.environ[name.upper()]) for name, of in LOSSES.items() if name.upper() in os.environ}
CUTS = {"save_to": os.environ["CUTS"], "save_every": 4} if "CUTS" in os.environ else {}


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


def leave(meanwhile: Callable[[], None]) -> None:
    """With what it carries into the next world."""
    if os.environ.get("BETWEEN") == str(bps.size()) and bps.rank() == 0:
        os.kill(int(os.environ.get("KILL", os.getpid())), signal.SIGKILL)
    rejoin(meanwhile)


def has_cut() -> bool:
    """Or needs none."""
    return "CUTS" not in os.environ or bps.elastic.latest(os.environ["CUTS"]) is not None


class Carried(running.Carried):
    """Of which a rank may die before all is taken over."""

    def into_world(self, kept: Any) -> None:
        if os.environ.get("INTO") == str(bps.size()) and bps.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("DRAINS") == str(bps.size()) and bps.rank() == 0 and self.shares:
            del os.environ["DRAINS"]
            say(event="drain", state=order_drain(Config.from_env(), DrainOrder(MemberRole.SERVER, 0)).state)
            time.sleep(1)
        super().into_world(kept)


running.rejoin, running.Carried = leave, Carried
bps.init()
torch.manual_seed(0)
model = torch.nn.Linear(300, 40)
gradients = {name: torch.randn_like(one) for name, one in model.named_parameters()}
plain = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), consistency="ssp:s=0", apply="server", **LOSSES)
counts = bps.Store("counts", {"w": np.zeros(ELEMENTS, np.int64)}, consistency="asp", combine="sum", **LOSSES)
rows = bps.KV("rows", 2, np.int64, **LOSSES)
keys = bps.KV.spread(np.arange(500), 500)
table = bps.Table("embeddings", 4, dtype=np.float64, optimizer="sgd:lr=1.0", init="uniform:bound=0.5", **LOSSES)
embedding, ids = bps.Embedding(table), torch.arange(300)
first = torch.from_numpy(table.pull(ids).value)


@bps.elastic.run(**CUTS)
def train(state):
    state.sizes = [*state.sizes, bps.size()]
    begun = state.step
    say(event="began", rank=bps.rank(), size=bps.size(), step=state.step, sizes=state.sizes, figures=bps.stats())
    while state.sizes != GOAL or state.step < begun + 5:
        if os.environ.get("VICTIM") == str(bps.size()) and state.step >= begun + 2 and has_cut():
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        sum((one * gradients[name]).sum() for name, one in model.named_parameters()).backward()
        optimizer.step()
        counts.push("w", np.ones(ELEMENTS, np.int64)).wait(30)
        rows.push(keys, np.ones((500, 2), np.int64)).wait(30)
        embedding(ids).sum().backward()
        state.step += 1
        say(event="step", step=state.step, size=bps.size())
        time.sleep(0.02)
        state.commit()


state = bps.elastic.TorchState(model, optimizer, counts=counts, rows=rows, table=table.rows, step=0, sizes=[])
train(state)
bps.barrier()
counted, summed = np.empty(ELEMENTS, np.int64), np.empty((500, 2), np.int64)
counts.pull("w", counted).wait(30)
rows.pull(keys, summed).wait(30)
moved = (first - torch.from_numpy(table.pull(ids).value)).round().long()
weights = {name: one.detach().flatten()[:50].tolist() for name, one in model.named_parameters()}
say(event="end", step=state.step, sizes=state.sizes, weights=weights, version=optimizer.version,
    counts=sorted({*counted.tolist(), *summed.ravel().tolist(), *moved.ravel().tolist()}))  # fmt: skip
bps.barrier()
bps.shutdown()
