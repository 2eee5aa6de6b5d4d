"""Training that goes on when workers come and go, by Horovod Elastic's names: `bps.elastic.run`, and states for it.

In come a training function and the state that it trains; out goes what the function returns, however often the world
has changed meanwhile. Only users' scripts import it; it imports ops, optimizer and what is below.

Private: agreement, carrying, interrupts, rejoining, reporting, running, sampler, saving, synchronizing, termination.
"""

from byteps_like.errors import OperationError, TooFewWorkersError
from byteps_like.store.saving.carrying import ValuesLostError
from byteps_like.torch.elastic.interrupts import DrainedExit, HostsUpdatedInterrupt
from byteps_like.torch.elastic.reporting import Report, StepReport, report
from byteps_like.torch.elastic.running import run
from byteps_like.torch.elastic.sampler import ElasticSampler
from byteps_like.torch.elastic.saving import latest, load, save
from byteps_like.torch.elastic.state import ObjectState, State
from byteps_like.torch.elastic.torch_state import (
    HandlerCut,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
from byteps_like.worker.engine.step_log import Lack

HorovodInternalError = OperationError
"""Horovod's name for what an operation fails with."""

__all__ = [
    "DrainedExit",
    "ElasticSampler",
    "HandlerCut",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Lack",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "Report",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "StepReport",
    "TooFewWorkersError",
    "TorchState",
    "ValuesLostError",
    "get_handler_registry",
    "latest",
    "load",
    "report",
    "run",
    "save",
    "set_handler_registry",
]
