"""An elastic training with few synchronizations, in which no two workers compute the same gradients.

Prints JSON. `OWN` is the worker's number, by which its gradients differ; `GOAL` are the sizes of the worlds to come,
after the last of which it makes ten more steps; `VICTIM` is a size: the last rank kills itself between two commits of
a world of so many, once there is a cut if there are to be some, in the directory `CUTS`. `TERMS`: of LowComm, as JSON;
it commits after every `COMMIT`th step.
"""

import json
import os
import signal
import time

import torch

import byteps_like.torch as bps

OWN, COMMIT = float(os.environ["OWN"]), int(os.environ["COMMIT"])
GOAL = [int(size) for size in os.environ["GOAL"].split()]
CUTS = {"save_to": os.environ["CUTS"], "save_every": 1} if "CUTS" in os.environ else {}


def dies(step: int) -> bool:
    """Whether this process does, before its next step."""
    is_victim = os.environ.get("VICTIM") == str(bps.size()) and bps.rank() == bps.size() - 1
    if not is_victim or step % COMMIT != 1:
        return False
    return not CUTS or bps.elastic.latest(CUTS["save_to"]) is not None


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


bps.init()
torch.manual_seed(0)
model = torch.nn.Linear(30, 4, dtype=torch.float64)
gradients = {name: torch.randn_like(one) * (1 + OWN) for name, one in model.named_parameters()}
inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
low = bps.LowComm(model, inner, **json.loads(os.environ["TERMS"]))


@bps.elastic.run(**CUTS)
def train(state):
    state.sizes = [*state.sizes, bps.size()]
    begun = state.step
    say(event="began", rank=bps.rank(), size=bps.size(), step=state.step, sizes=state.sizes)
    with low:
        while state.sizes != GOAL or state.step < begun + 10:
            if dies(state.step):
                os.kill(os.getpid(), signal.SIGKILL)
            inner.zero_grad()
            sum((one * gradients[name]).sum() for name, one in model.named_parameters()).backward()
            inner.step()
            state.step += 1
            say(event="step", step=state.step, size=bps.size())
            time.sleep(0.02)
            if state.step % COMMIT == 0:
                state.commit()
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
    say(event="end", step=low.steps, sizes=state.sizes, weights=weights, version=low.version)


train(bps.elastic.TorchState(model, inner, low=low, step=0, sizes=[]))
bps.barrier()
bps.shutdown()
