"""Rows of embeddings, which servers keep and update: more of them than a worker has memory for, by ids that nobody has
to declare."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.arrays import Array, dtype_by, outgoing
from byteps_like.store.dependent import RowsFuture
from byteps_like.store.kv import KV
from byteps_like.store.policies.policy import Policy
from byteps_like.store.tables.first_values import FirstValues, Uniform
from byteps_like.store.tables.ids import IdPlaces, Ids, places_of, unmixed
from byteps_like.store.updates.adagrad import RowAdagrad
from byteps_like.store.updates.update import ValueUpdate


class RowsOfIds:
    """Rows on their way to this rank."""

    def __init__(self, future: RowsFuture, places: IdPlaces) -> None:
        self._future, self._places = future, places

    def done(self) -> bool:
        """Whether they are here."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> RowsOfIds:
        """Blocks until they are; raises what went wrong, and DeadlineError."""
        self._future.wait(timeout)
        return self

    @property
    def value(self) -> Array:
        """A row for each id, of the ids' shape with one more dimension, `dim`. Blocks."""
        self.wait()
        rows: Array = np.take(self._future.value, self._places.rows, axis=0)
        return rows


class Table:
    """Rows of `dim` numbers by id, any number from 0 to 2^64 - 1, shared out over the job's servers by a hash. All ids
    have a row: its first values follow from the id, and it takes memory from the first gradient on. Servers apply an
    optimizer to each row that a gradient names. Thread-safe.

    A rank's calls happen in their order: a pull sees what the rank has pushed before.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        dtype: Any = np.float32,
        optimizer: ValueUpdate | str = RowAdagrad(lr=0.02),  # noqa: B008 - it never changes
        init: FirstValues | str = Uniform(),  # noqa: B008
        consistency: Policy | str = "asp",
        **store: Any,
    ) -> None:
        """All ranks make it, with the same arguments. `dtype`: float32 or float64.

        `optimizer`: what servers do with the gradients of a row, such as "sgd:lr=0.1", RowAdagrad(0.02) or "adam"; its
        state is beside the row. `init`: the first values, such as "uniform:bound=0.05" or Normal(0.02). `consistency`
        and `store`: as of a KV (docs/how-to/consistency.md). By "asp" each rank's gradients are an update of their own;
        `combine="mean"` with "bsp" makes one update a step of the mean of all ranks'.

        Raises as KV does.
        """
        self._kind = dtype_by(dtype)
        if self._kind not in (DType.FLOAT32, DType.FLOAT64):
            raise InvalidArgumentError(f"table {name!r}: rows of embeddings are float32 or float64, not {dtype}")
        self.name, self.dim = name, dim
        self.lr: float | None = None
        """Of the gradients that are pushed from here on; None: the optimizer's own."""
        self.rows = KV(f"table/{name}", dim, dtype, update=optimizer, init=init, consistency=consistency, **store)
        """By their mixed ids (tables/ids.py): what elastic states and checkpoints of several stores hold on to."""
        self._pushed: deque[RowsFuture] = deque()
        self._lock = threading.Lock()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows."""
        return np.dtype(self._kind.name.lower())

    def pull(self, ids: Any) -> RowsOfIds:
        """Reads the rows of ids, an array, a tensor or a list of any shape, in any order, some of them more than once.
        Never blocks. Each travels once."""
        places = places_of(ids)
        return RowsOfIds(self.pull_rows(places.keys), places)

    def push(self, ids: Any, gradients: Any) -> RowsFuture:
        """Contributes a gradient for each id, of the ids' shape with one more dimension, `dim`. Never blocks. Those of
        one id are added up before they travel. Without any ids it is a contribution, too, which policies may wait for.

        Raises InvalidArgumentError for another shape, and what an earlier push has failed with.
        """
        places = places_of(ids)
        array = outgoing(gradients if hasattr(gradients, "shape") else np.asarray(gradients), self._kind)
        if array.shape != (*places.rows.shape, self.dim):
            raise InvalidArgumentError(
                f"table {self.name!r}: {list(array.shape)} is not the shape of gradients for ids of shape"
                f" {list(places.rows.shape)}, which is {[*places.rows.shape, self.dim]}"
            )
        return self.push_rows(places.keys, places.summed(array))

    def pull_rows(self, keys: Ids, out: Any = None) -> RowsFuture:
        """As KV.pull, by `IdPlaces.keys`."""
        self._check_pushed()
        return self.rows.pull(keys, out)

    def push_rows(self, keys: Ids, gradients: Any) -> RowsFuture:
        """As KV.push, by `IdPlaces.keys`."""
        self._check_pushed()
        future = self.rows.push(keys, gradients, lr=self.lr)
        with self._lock:
            self._pushed.append(future)
        return future

    def _check_pushed(self) -> None:
        """Raises what has gone wrong with gradients whose future nobody may have kept."""
        while (future := self._oldest(done=True)) is not None:
            future.wait()

    def wait(self) -> None:
        """Blocks until servers have applied all that this rank has pushed. Raises what went wrong."""
        while (future := self._oldest(done=False)) is not None:
            future.wait()

    def _oldest(self, done: bool) -> RowsFuture | None:
        """Of those that nobody has asked yet; if it has to be `done`, None for one that isn't."""
        with self._lock:
            ready = self._pushed and (not done or self._pushed[0].done())
            return self._pushed.popleft() if ready else None

    def all_rows(self, since: RowsFuture | None = None) -> Iterator[tuple[Ids, Array]]:
        """Ids and rows of all that have been pushed to, in pieces of at most 256 MB. Blocks."""
        for piece in self.rows.pull_all(since):
            yield unmixed(np.asarray(piece.keys)), np.asarray(piece.value)

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Writes all rows and the optimizer's state. See KV.checkpoint."""
        return self.rows.checkpoint(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """See KV.restore."""
        self.rows.restore(path)

    def finish(self) -> None:
        """See KV.finish."""
        self.wait()
        self.rows.finish()
