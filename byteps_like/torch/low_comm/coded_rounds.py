"""Changes travel encoded, from every rank to every other; each decodes and adds them.

Nothing is encoded twice, and what the codec leaves out of a change is added to the next one: Sarfi et al.,
"Communication Efficient LLM Pre-training with SparseLoCo", 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Traffic
from byteps_like.compression.codec import Codec, Floats
from byteps_like.dtypes import DType
from byteps_like.store.updates.update import Values, ValueUpdate
from byteps_like.torch.compression.slot_codec import Bytes, SlotCodec
from byteps_like.torch.low_comm.lockstep_rounds import LockstepRounds
from byteps_like.worker.api import Worker

PART = 1 << 20
"""Elements that are encoded together."""

_WEIGHT = 8
"""Bytes before a rank's slots: what its contribution counts, as fp64."""


@dataclass
class _Gather:
    """Of one fragment."""

    residual: Floats
    """What was left out so far."""
    own: Bytes
    all: NDArray[np.uint8]
    """By rank, what came."""
    rounds: int = 0
    operation: CollectiveOperation | None = None


class CodedRounds(LockstepRounds):
    """With `feedback`, from 0 to 1, of what was left out before."""

    def __init__(
        self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate, codec: Codec, feedback: float,
        worker: Worker,
    ) -> None:  # fmt: skip
        super().__init__(name, values, outer, worker)
        self._group: Group = worker.group(name)
        self._text = codec.spec()
        self._codec, self._feedback = SlotCodec(codec, 0, "LowComm"), np.float32(feedback)
        self._gathers = [self._gather(len(value)) for value in values]

    def _gather(self, numel: int) -> _Gather:
        nbytes = _WEIGHT + sum(slot.stop - slot.start for slot, _ in self._parts(numel))
        return _Gather(
            np.zeros(numel, np.float32), np.zeros(nbytes, np.uint8), np.zeros((self._group.size, nbytes), np.uint8)
        )

    def _parts(self, numel: int) -> Iterator[tuple[slice, slice]]:
        """Where slots are behind one another, and which elements each has."""
        end = _WEIGHT
        for begin in range(0, numel, PART):
            elements = slice(begin, min(begin + PART, numel))
            begun, end = end, end + self._codec.slot(elements.stop - begin)
            yield slice(begun, end), elements

    @override
    def own(self) -> dict[str, Any]:
        residuals = [torch.from_numpy(one.residual) for one in self._gathers]
        return {"codec": self._text, "residuals": residuals, "rounds": [one.rounds for one in self._gathers]}

    @override
    def take_own(self, own: Mapping[str, Any], *, is_own: bool) -> None:
        for one, left, rounds in zip(self._gathers, own["residuals"], own["rounds"], strict=True):
            one.residual[:] = left.numpy() if is_own else 0
            one.rounds = rounds  # also of others: no random number is drawn twice

    @override
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        one = self._gathers[fragment]
        one.residual *= self._feedback
        one.residual += change.numpy()
        one.own[:_WEIGHT].view(np.float64)[0] = weight
        for part, (slot, elements) in enumerate(self._parts(one.residual.size)):
            left = one.residual[elements]
            self._codec.encode(left, one.own[slot], (fragment << 32 | part, one.rounds, self._group.rank), left)
        one.rounds += 1
        one.operation = self._group.all_gather(
            one.own.ctypes.data, one.all.ctypes.data, [one.own.size] * self._group.size, DType.UINT8,
            CallOptions(traffic=Traffic.GRADIENT),
        )  # fmt: skip

    @override
    def _mean(self, fragment: int) -> Values:
        one = self._gathers[fragment]
        assert one.operation is not None  # since it has begun
        one.operation.wait()
        one.operation = None
        weights = one.all[:, :_WEIGHT].copy().view(np.float64)[:, 0]
        total = np.zeros(one.residual.size, np.float32)
        for factor, came in zip((weights / weights.sum()).astype(np.float32), one.all, strict=True):
            for slot, elements in self._parts(total.size):
                self._add(factor, came[slot], total[elements])
        mean: Values = total.astype(self.values[fragment].numpy().dtype, copy=False)
        return mean

    def _add(self, factor: np.float32, slot: Bytes, total: Floats) -> None:
        decoded = np.empty_like(total)
        self._codec.decode(slot, decoded)
        with np.errstate(over="ignore", invalid="ignore"):
            decoded *= factor
            total += decoded
