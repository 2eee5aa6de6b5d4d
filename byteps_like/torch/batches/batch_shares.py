"""BatchShares: each rank takes as much of a global batch as it is fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.batches.apportion import Shares, apportion, better
from byteps_like.torch.batches.own_speed import OwnSpeed
from byteps_like.torch.batches.terms import ShareTerms
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.calls.reductions import Reduction, Sum
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.single import start

_BEFORE_GRADIENTS = 1 << 30  # a few bytes that the next step can't begin without


class BatchShares:
    """How many samples of a global batch this rank takes in each step, so that no rank waits for a slower one.

        shares = bps.BatchShares(batch=256)
        for inputs, targets in global_batches:  # the same on all ranks
            optimizer.zero_grad()
            with shares.step():
                loss = criterion(model(inputs[shares.slice]), targets[shares.slice])  # the mean over own samples
                (loss * shares.scale).backward()
            optimizer.step()

    With `scale`, gradients averaged over ranks are those of the global batch. Shares are proportional to the ranks'
    speeds in samples per second of own work, from the beginning of `step` to its end, without waits of this package's
    calls in between. If a step has a part that takes as long for one sample as for many, shares still settle where all
    ranks take the same time, for then b_i / time_i, in proportion to which they are dealt, leaves them as they are.

    On the wire: at first, and after each `every` steps, the push_pull of a float64 per rank; it is under way while the
    optimizer steps. Not thread-safe: it belongs to the thread that trains.
    """

    def __init__(
        self,
        batch: int,
        *,
        smoothing: float = 0.3,
        every: int = 1,
        minimum: int = 1,
        multiple: int = 1,
        least_gain: float = 0.05,
        device: torch.device | str = "cpu",
        process_set: object = None,
    ) -> None:
        """All ranks (of `process_set`) make it, with the same arguments but for `device`; it blocks for that.

        batch: samples of all ranks together in one step.
        smoothing: what the newest step counts in the moving average of a rank's speed; the older ones share the rest.
        every: steps between two exchanges of speeds. Ranks may be that many steps apart, less one: those of an exchange
            count from the end of the period, in the first step of which it begins.
        minimum: samples that each rank gets at least.
        multiple: shares are whole multiples of it.
        least_gain: by which part of its time a step must become shorter, at the speeds that are known, for shares to
            change.
        device: where the work is done, for whose end `begin` and `end` wait.

        Raises InvalidArgumentError for values out of bounds and for a batch too small for the ranks, MismatchError on
        all ranks if arguments differ, NotInitializedError outside of a job.
        """
        self._terms = ShareTerms(batch, smoothing, every, minimum, multiple, least_gain)
        self._runtime = _runtime.current()
        self._scope = self._runtime.scope(process_set)
        self._name = f"batch_shares.{self._runtime.count(f'batch_shares {self._scope.number}')}"
        self._speed = OwnSpeed(self._runtime, smoothing, torch.device(device))
        self._speeds: tuple[float, ...] = ()
        self._by_rank = self._evenly()
        synchronize(self._start_exchange())
        self._exchange: int | None = None

    @property
    def by_rank(self) -> tuple[int, ...]:
        """Samples of each rank in the step under way, or, between steps, in the last one. They add up to the batch."""
        return self._by_rank

    @property
    def speeds(self) -> tuple[float, ...]:
        """Samples per second of each rank when they were exchanged last; empty before."""
        return self._speeds

    @property
    def own(self) -> int:
        """Samples of this rank: its element of `by_rank`. Also what its contributions weigh where servers keep the
        weights and average several into a version: `optimizer.weight = shares.own`, instead of `scale`."""
        return self._by_rank[self._scope.rank]

    @property
    def slice(self) -> slice:
        """Which samples of the global batch are this rank's: those of lower ranks come before."""
        first = sum(self._by_rank[: self._scope.rank])
        return slice(first, first + self.own)

    @property
    def scale(self) -> float:
        """Ranks times own samples by those of the batch. The loss, a mean over own samples, is multiplied by it; then
        gradients with op=Average are those of the mean over the global batch."""
        return len(self._by_rank) * self.own / self._terms.batch

    @contextmanager
    def step(self) -> Iterator[int]:
        """Around own work, from the model's input to the end of backward, with this rank's samples as its value.

        As `begin` and `end`; one that ends with an exception doesn't count, so all ranks must leave it out.
        """
        own = self.begin()
        try:
            yield own
        except BaseException:
            self._speed.drop()
            raise
        self.end()

    def begin(self) -> int:
        """Own work of a step begins: this rank's samples, which are new where a period ends. Then it blocks until all
        ranks have measured that period's first step, which synchronous optimizers have waited for already.

        Raises the job's error, and InvalidArgumentError within a step or after the job.
        """
        self._speed.check_idle()
        if _runtime.current() is not self._runtime:
            raise InvalidArgumentError(
                "this BatchShares belongs to a job that this rank has left: make another one after init()"
            )
        if self._exchange is not None and self._speed.measured % self._terms.every == 0:
            self._deal(synchronize(self._exchange))
            self._exchange = None
        if self._scope.size != len(self._by_rank):
            self._by_rank = self._evenly()
        self._speed.begin()
        return self.own

    def end(self) -> None:
        """Own work of a step has ended, on a device, too, for which it blocks. Raises InvalidArgumentError without
        `begin`, and the job's error."""
        self._speed.end(self.own)
        measured = self._speed.measured
        if measured and (measured - 1) % self._terms.every == 0:
            self._exchange = self._start_exchange()

    def _start_exchange(self) -> int:
        """A handle of all ranks' speeds."""
        speeds = torch.zeros(self._scope.size, dtype=torch.float64, device="cpu")
        speeds[self._scope.rank] = self._speed.average
        alike = Reduction(Sum, _BEFORE_GRADIENTS, purpose=self._terms.text())
        return start(speeds, self._name, alike, self._scope.number)

    def _deal(self, speeds: torch.Tensor) -> None:
        self._speeds = tuple(speeds.tolist())
        if len(self._speeds) == len(self._by_rank):
            wanted = self._apportioned(self._speeds)
            self._by_rank = better(self._by_rank, wanted, self._speeds, self._terms.least_gain)

    def _evenly(self) -> Shares:
        self._terms.check(self._scope.size)
        return self._apportioned((1.0,) * self._scope.size)

    def _apportioned(self, speeds: tuple[float, ...]) -> Shares:
        units = apportion(self._terms.units, speeds, self._terms.least_units)
        return tuple(self._terms.multiple * each for each in units)
