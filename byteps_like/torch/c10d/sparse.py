"""all_reduce of sparse COO tensors in a process group: the entries travel, instead of all their zeros."""

from __future__ import annotations

from collections.abc import Callable

import torch

from byteps_like.collectives.api import Group
from byteps_like.collectives.ending import Ending
from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, DeadlineError, InvalidArgumentError, timed_out
from byteps_like.torch.c10d.futures import Callbacks
from byteps_like.torch.c10d.lanes import Lanes
from byteps_like.torch.calls.two_steps import InFlight
from byteps_like.torch.device import devices
from byteps_like.torch.sparse.exchange import ExchangeLanes, SparseExchange
from byteps_like.torch.sparse.rows import SUMMED, Rows


class SparseSums:
    """Those of one group. Thread-safe.

    What follows the headers depends on them, and so can't be launched in the program's order. It goes over lanes of its
    own, one sum after the other, by a thread.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._thread = Callbacks()

    def start(self, tensor: torch.Tensor, op: Op, first: Group, timeout: float | None) -> SparseSum:
        """Starts the sum or average of `tensor`, which becomes it, coalesced. `first`: the lane of the group's calls.

        One on a device is copied to the host, which waits for it, and its sum back.
        Raises InvalidArgumentError for other operations, and for elements that torch can't sum in sparse tensors.
        """
        if op not in (Op.SUM, Op.AVERAGE):
            raise InvalidArgumentError(f"allreduce: sparse tensors can't be reduced with {op.name}; use SUM or AVG")
        if tensor.dtype not in SUMMED:
            raise InvalidArgumentError(f"allreduce: sparse tensors of {tensor.dtype} can't be summed")
        lane = self._lanes.current
        exchange = SparseExchange(
            Rows.of(tensor.detach().cpu()), op, ExchangeLanes(lane, first, "allreduce", timeout), lane.size == 2
        )
        made = SparseSum(exchange, tensor)
        self._thread.add(made.run)
        return made

    def cancel(self, error: BytePSLikeError) -> None:
        """Those under way raise `error`."""
        self._lanes.cancel(error)

    def close(self, why: str) -> None:
        """Those to come raise ShutdownError; the thread ends after those under way."""
        self._lanes.end(why)
        self._thread.close()

    def release(self) -> None:
        """Gives back what the lanes hold."""
        self._lanes.release()


class SparseSum:
    """One of them. See collectives.api.CollectiveOperation."""

    source = -1

    def __init__(self, exchange: SparseExchange, tensor: torch.Tensor) -> None:
        self._exchange, self._tensor = exchange, tensor
        self._step: InFlight | None = None
        self._ending: Ending[BytePSLikeError] = Ending()

    def run(self) -> None:
        """All of it; blocks."""
        error: BytePSLikeError | None = None
        try:
            self._sum()
        except BytePSLikeError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - raised by wait()
            error = BytePSLikeError(f"allreduce of a sparse tensor: {failure!r}", operation="allreduce")
        self._ending.come(error)

    def _sum(self) -> None:
        self._step = self._exchange.start()
        self._step.wait()
        total = self._exchange.result()[0].tensor()
        with torch.no_grad():
            self._tensor.copy_(total.to(self._tensor.device))
        if (device := devices.of(self._tensor)) is not None:
            device.current().record().wait()  # whose streams know nothing of this thread's

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ending.has_come()

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it has ended. Raises what it failed with; DeadlineError after `timeout`, and then it goes on."""
        if not self._ending.wait(timeout):
            raise DeadlineError(f"wait() for allreduce of a sparse tensor {timed_out(timeout or 0.0)}; it goes on")

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation. Nothing ends if no step has begun: nobody waits for it then."""
        step = self._step
        if step is not None:
            step.give_up(error)

    def error(self) -> BytePSLikeError | None:
        """Why it failed, or None."""
        return self._ending.error()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once it has ended."""
        self._ending.on_come(callback)
