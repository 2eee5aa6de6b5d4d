"""A sampler that knows which samples have been processed, and splits the rest among whoever is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from byteps_like.errors import NotInitializedError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.ops.objects import allgather_object, broadcast_object

Mask = npt.NDArray[np.bool_]
"""One place per sample of the data set."""

_worlds: WeakKeyDictionary[Runtime, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Split:
    """The unprocessed samples of a pass, in their order, dealt out to `size` ranks in turn."""

    remaining: npt.NDArray[np.int64]
    size: int
    rank: int
    world: int
    """Which one it was made for: see `_world`."""

    def part(self, rank: int) -> npt.NDArray[np.int64]:
        """Of a rank. All are equally long: the last samples are filled up from the front."""
        count = -(-len(self.remaining) // self.size)
        positions = np.arange(rank, count * self.size, self.size)
        return self.remaining[positions % max(len(self.remaining), 1)]


@dataclass(frozen=True)
class SamplerSnapshot:
    """A sampler as it was."""

    epoch: int
    base: Mask
    own: Mask
    split: _Split
    progress: int
    others: tuple[int, ...]

    @property
    def processed(self) -> Mask:
        """What was, of this pass: by this rank, and by the others as far as it had heard."""
        known = self.base | self.own
        for rank, progress in enumerate(self.others):
            known[self.split.part(rank)[:progress]] = True
        return known


class ElasticSampler(Sampler[int]):
    """Hands out the samples of `dataset`, of each pass (`set_epoch`) in an order that follows from `seed` and the pass.

    A loop says which samples it has processed (`record_batch`). When the world has changed, the others are dealt out
    anew among the ranks: `len(sampler)` becomes smaller, and a loader over it goes on where the ranks have been. At
    the end of a pass some samples may be handed out twice, so that all ranks have equally many.

    Part of a TorchState it is exact after a loss, too. Each commit tells rank 0 how far every rank has come, so only
    what was not part of the last commit is handed out again. For that, ranks have to record samples in the order in
    which they get them; those that a lost rank has recorded in another order are handed out again.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """`dataset` must be as long on all ranks. Takes a byte of memory per sample."""
        super().__init__()
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._others: tuple[int, ...] = ()
        """How far each rank has come with its part, as of the last commit."""
        self._base: Mask = np.zeros(len(dataset), np.bool_)
        """What had been processed when the split was made."""
        self._own: Mask = np.zeros_like(self._base)
        """What this rank has processed since."""
        self._deal_out()

    # --- what loops call ---

    def set_epoch(self, epoch: int) -> None:
        """Begins pass `epoch`: nothing of it has been processed. Call it at the end of the one before."""
        self.epoch = epoch
        self._base[:] = self._own[:] = False
        self._deal_out()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has processed its `batch_idx`th batch, from 0, of `batch_size` samples, since the split."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """This rank has processed these samples, by their numbers in the data set."""
        self._own[np.fromiter(indices, np.int64)] = True
        while self._progress < len(self._part) and self._own[self._part[self._progress]]:
            self._progress += 1

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Of this rank's `batch_idx`th batch since the split."""
        begin = batch_idx * batch_size
        return self._part[begin : begin + batch_size]

    def __iter__(self) -> Iterator[int]:
        return iter(self._part)

    def __len__(self) -> int:
        """Number of samples of this rank since the split."""
        return len(self._part)

    # --- what is known ---

    @property
    def processed_num(self) -> int:
        """Number of samples of this pass that this rank knows to be processed: all that were when the split was made,
        and its own."""
        return int((self._base | self._own).sum())

    @property
    def processed_indices(self) -> set[int]:
        """These samples."""
        return set(np.flatnonzero(self._base | self._own).tolist())

    @property
    def remaining_indices(self) -> list[int]:
        """Of the whole world, in their order: what had not been processed when the split was made."""
        return list(self._split.remaining.tolist())

    @property
    def num_replicas(self) -> int:
        """Number of ranks among which they are split."""
        return self._split.size

    @property
    def rank(self) -> int:
        """Of this process among them."""
        return self._split.rank

    # --- when the world changes ---

    def reset(self) -> None:
        """Deals out what is not processed anew, among the ranks that are there."""
        self._base = self._base | self._own if self._split.world == _world() else self._known()
        self._own[:] = False
        self._deal_out()

    def state_dict(self) -> dict[str, Any]:
        """The pass, and what this rank knows to be processed of it."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict()` has returned, and deals out the rest."""
        processed = np.zeros_like(self._base)
        processed[np.fromiter(state_dict["processed_indices"], np.int64)] = True
        self.go_on(state_dict["epoch"], processed)

    def sync(self) -> None:
        """All ranks take the same pass and the same samples as processed, and deal out the rest. All must call it.

        If the world is that of rank 0's split, what any rank has processed is. In a new one, what rank 0 knows: also of
        ranks that are gone.
        """
        known = None if self._split.world == _world() else self._known().tobytes()
        self.epoch, mask = broadcast_object((self.epoch, known), root_rank=0)
        masks = allgather_object((self._base | self._own).tobytes()) if mask is None else [mask]
        self._base = np.logical_or.reduce([np.frombuffer(one, np.bool_) for one in masks])
        self._own[:] = False
        self._deal_out()

    @property
    def progress(self) -> int:
        """How many of its samples since the split this rank has processed without leaving one out."""
        return self._progress

    def hear_progress(self, ranks: list[int]) -> None:
        """That of all ranks, by rank. A rank that has died says nothing any more, which counts as 0."""
        self._others = tuple(map(max, ranks, self._others or ranks))

    def snapshot(self) -> SamplerSnapshot:
        """As it is now."""
        return SamplerSnapshot(
            self.epoch, self._base.copy(), self._own.copy(), self._split, self._progress, self._others
        )

    def go_back(self, to: SamplerSnapshot) -> None:
        """Makes it what it was."""
        self.epoch, self._base, self._own = to.epoch, to.base.copy(), to.own.copy()
        self._take_up(to.split)
        self._progress, self._others = to.progress, to.others

    def go_on(self, epoch: int, processed: Mask) -> None:
        """Pass `epoch`, of which so much is processed; deals out the rest."""
        self.epoch = epoch
        self._base, self._own[:] = processed.copy(), False
        self._deal_out()

    # --- inside ---

    def _deal_out(self) -> None:
        rank, size = (_runtime.rank(), _runtime.size()) if _runtime.initialized() else (0, 1)
        order = self._order()
        self._take_up(_Split(order[~self._base[order]], size, rank, _world()))

    def _order(self) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(len(self._base))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self._base), generator=generator).numpy()

    def _take_up(self, split: _Split) -> None:
        self._split = split
        self._part: list[int] = split.part(split.rank).tolist()
        self._progress = 0
        self._others = ()

    def _known(self) -> Mask:
        """What has been processed of the split, by all of its ranks, as far as this one knows."""
        return self.snapshot().processed


def _world() -> int:
    """A number for the world that the process is in; 0: of none."""
    try:
        return _worlds.setdefault(_runtime.installed(), len(_worlds) + 1)
    except NotInitializedError:
        return 0
