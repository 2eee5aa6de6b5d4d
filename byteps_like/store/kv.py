"""Rows by key whose values servers keep: what users push to and pull from, where each step needs a few of very many."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.compression.codec import Codec, Draw
from byteps_like.config_values import LARGEST_PARTITION
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.arrays import Array, ValueLanding, dtype_by, empty_beside, landing, outgoing, shape_of
from byteps_like.store.combining.registry import combining_by
from byteps_like.store.dependent import FoundRows, InOrder, RowsFuture
from byteps_like.store.filters.filter import KeyedRows
from byteps_like.store.filters.filtering import Filtering
from byteps_like.store.filters.registry import Filter
from byteps_like.store.functions.calling import begin_call_on_rows, end_call
from byteps_like.store.functions.registry import check_name
from byteps_like.store.future import Future, Landed, PartsFlight
from byteps_like.store.memory.holding import held
from byteps_like.store.policies.bounded import Asp, Ssp
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import text_of
from byteps_like.store.row_split import Ids, RowSplit, RowSplits, ShardRows
from byteps_like.store.saving.carrying import hand_over
from byteps_like.store.saving.checkpoint import Taken, leave, restore, save, take
from byteps_like.store.saving.keys import Savable, SavedStore
from byteps_like.store.saving.manifest import Manifest, SavedTensor
from byteps_like.store.saving.memory import gather, scatter
from byteps_like.store.saving.on_servers import SavedOnServers
from byteps_like.store.saving.saved import SavedContent
from byteps_like.store.tables.first_values import FirstValues, Zeros, first_values_of
from byteps_like.store.terms import StoreTerms, policy_for, terms_of
from byteps_like.store.updates.plain import NoUpdate
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.store.upper.above import Above, check_below
from byteps_like.store.upper.rows import END, ROWS, RowsExchange, RowsSite
from byteps_like.store.upper.upper import Upper
from byteps_like.store.versions import Found, Versions
from byteps_like.wire.note import Note
from byteps_like.wire.saving import saved_row_bytes
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.current import current
from byteps_like.worker.keeping import KeepHandle, Keeps, RangeHandle
from byteps_like.worker.tables import KeepsTables, KeptTable, RowsAt, TableSpec, table_tensor

Start = Callable[[], RowsFuture]


class KV:
    """Rows of one width by key, a number from 0 to 2^64 - 1. A row is zeros, or what `init` says, before the first push
    that names it. Thread-safe. A rank's calls happen in their order: a pull sees what the rank has pushed before.

    Keys lie in order on the job's servers, a 4,096th of all numbers after the other: `KV.spread` gives numbers that
    load all alike. Which keys an operation is about travels once; the same keys again cost no bytes.
    """

    def __init__(
        self,
        name: str,
        width: int = 1,
        dtype: Any = np.float32,
        *,
        delay: float | None = None,
        consistency: Policy | str | None = None,
        update: ValueUpdate | str = "add",
        combine: str = "sum",
        age: str | None = None,
        damp: str | None = None,
        init: FirstValues | str = "zeros",
        functions: Sequence[str] = (),
        codec: Codec | str = "",
        filters: Sequence[Filter | str] = (),
        on_loss: str | None = None,
        replicas: int | None = None,
        upper: Upper | None = None,
        worker: Worker | None = None,
    ) -> None:
        """All ranks make it, with the same arguments. `width`: elements of a row, of `dtype` float32, float64 or int64.

        `delay`: by how many pushes a rank may be ahead of the slowest before its pulls wait; math.inf: by any number.
        Or `consistency`, as of a Store ("asp" if neither is given). `update`: what a version does to each row that its
        contributions name; `init`: what rows are before the first push that names them, such as "uniform:bound=0.01" or
        Normal(0.02), random numbers that an id always gets; `functions`: names of those that a push may ask for instead
        (docs/how-to/server-functions.md). `combine`, `age`, `damp`, `on_loss`, `replicas`, `worker`: as of a Store.
        `codec`: rows travel to servers encoded by it, such as "int8" (docs/how-to/compression.md), those of one push
        and server together; what it leaves out is lost. `filters`: what rows go through on their way to servers, and
        back, one after the other: "significant:delta=0.1", "float:bytes=3", "zlib" (docs/how-to/key-value.md), or
        Significant(0.1). Ranks may differ in those of rows, but not of payloads. `upper`: a group of servers above
        those of this job and of other sites, with which it exchanges rows that have changed (docs/how-to/sites.md).

        Blocks until all servers have answered, and with `upper` until all sites have come. Raises MismatchError where
        ranks differ, and InvalidArgumentError for arguments out of bounds, `delay` together with `consistency`,
        functions that servers lack or that have a state, and a job without servers.
        """
        self.name = name
        self._worker = worker or current()
        self._width, self._dtype = width, dtype_by(dtype)
        self._terms = self._checked(terms_of(
            self._worker, _consistency(delay, consistency), update, combining_by(combine, age, damp), on_loss=on_loss,
            replicas=replicas,
        ))  # fmt: skip
        self._first_values = first_values_of(init, self._dtype.name.lower())
        self._functions = tuple(check_name(one) for one in functions)
        self._filters = Filtering(filters, codec, width, self._dtype, self._terms.update)
        self.upper = None if upper is None else self._below(upper)
        """Exchanges with the upper group; None: there is none."""
        self._calls = InOrder()
        self._pushed = itertools.count()
        self._gate = threading.RLock()
        self._open()
        if upper is not None and self.upper is not None:
            self._start(upper, self.upper)

    def _open(self) -> None:
        self._table = self._keep()
        self._versions = Versions(self._table.declared.spec.name, len(self._table.shards.firsts))
        self._splits = RowSplits(self._table)

    def reopen(self, worker: Worker | None = None) -> None:
        """Has servers of the next world of an elastic job keep it, without rows. See Store.reopen."""
        if self.upper is not None:
            raise InvalidArgumentError(f"KV {self.name!r} has an upper group, so it is of one world: restore a cut")
        with self._gate:
            self._worker = worker or current()
            self._terms = self._checked(self._terms.again(self._worker))
            self._open()

    def _below(self, upper: Upper) -> Above[KV]:
        check_below(self._terms, [self._tensor()], upper)
        if not isinstance(self._first_values, Zeros):
            raise InvalidArgumentError(
                f"KV {self.name!r}: below an upper group rows begin as zeros, not as {self._first_values.text()}"
            )
        self._keeper()

        def make(worker: Worker) -> KV:
            return KV(
                self.name, self._width, self._dtype.name.lower(), consistency=upper.consistency, update=upper.update,
                combine=upper.combine, worker=worker,
            )  # fmt: skip

        return Above(upper, self._worker.rank, make)

    def _start(self, upper: Upper, above: Above[KV]) -> None:
        """All ranks make the places beside the rows; rank 0 exchanges these."""
        beside = _Beside(self)

        def version() -> int:
            saved = self._saved_store()
            return min(head.version for head in saved.heads(saved.keys).values())

        site = RowsSite(
            partial(self._walk, self._versions.noticed), self._table, beside, beside._table, version, self._gate
        )  # fmt: skip
        exchange = None if above.store is None else RowsExchange(site, above.store, upper)
        above.start(self.name, lambda: {ROWS: version()}, exchange)

    @staticmethod
    def spread(numbers: Any, count: int) -> Ids:
        """Keys for `numbers` from 0 to `count` - 1, in their order, spread over all servers alike."""
        if not 1 <= count <= 1 << 63:
            raise InvalidArgumentError(f"count={count}: so many keys can't be spread; give one from 1 to 2^63")
        return np.asarray(numbers, np.uint64) * np.uint64((1 << 64) // count)

    @property
    def consistency(self) -> str:
        """The policy in force, as text."""
        return text_of(self._terms.policy)

    def change(self, consistency: Policy | str) -> None:
        """From here on another policy holds. See Store.change."""
        policy = policy_for(self._worker, consistency, self._terms.update, self._terms.combining)
        self._terms = replace(self._terms, policy=policy)
        self._table.change(self._spec()).wait()

    def finish(self) -> None:
        """This rank contributes no more, and the others don't wait for it. Blocks until all ranks have called it: then
        contributions that were left count, too, if that is possible, and rows were exchanged with the upper group for
        the last time. Raises on all ranks why that is not so."""
        self.change(self._terms.combining.last(self._terms.policy, self._worker.size))
        if self.upper is not None:
            self._worker.barrier()  # see Store.finish
            self.upper.finish(self._all_begun())

    def exchange_above(self) -> bool:
        """Exchanges rows with the upper group once more. See Store.exchange_above."""
        if self.upper is not None:
            self.upper.exchange(self._all_begun())
        return self.upper is not None

    def push(
        self,
        keys: Any,
        values: Any,
        *,
        function: str = "",
        base: int | None = None,
        weight: float = 1.0,
        lr: float | None = None,
        loss: float = math.nan,
        priority: int | None = None,
        after: Sequence[Future] = (),
    ) -> RowsFuture:
        """Contributes a row to each of some keys. Never blocks. Done when servers have applied it, or not.

        `keys`: strictly ascending integers, an array, a tensor or a list; `values`: their rows, of shape [n, width], or
        [n] if the width is 1. Without any it is a contribution, too: others wait for it, if the policy says so. Values
        may be sent from their own memory: leave them alone until the future is done. `function`: what servers do with
        them instead of the update, one of the table's `functions`; the update's state stays as it is. `base`, `weight`,
        `lr`, `loss`, `priority`: as Store.push; versions are those of the table, at each shard. `after`: what must be
        done before this begins; what is called later begins later. Raises InvalidArgumentError for keys that don't
        ascend (where) and arguments out of bounds, and the job's error once it has failed.
        """
        self._terms.check_push(weight, lr, integers=self._dtype is DType.INT64)
        if base is not None:
            self._versions.check(range(len(self._table.shards.firsts)), base)
        split = self._splits.of(keys)
        values = values if hasattr(values, "shape") else np.asarray(values)
        shape = self._shape(split.ids, values)
        array = outgoing(values, self._dtype).reshape(shape)
        if self.upper is not None and len(split.ids) and int(split.ids[-1]) == END:
            raise InvalidArgumentError(f"KV {self.name!r}: key {END} is in no range, so no upper group can have it")
        if self._filters.of_rows:
            ids, array = self._filters.outgoing(KeyedRows(split.ids, array))
            split = self._splits.of(ids)
        note = Note(weight=weight, lr=math.nan if lr is None else lr, loss=loss, function=self._number(function))
        return self._contribute(split, array, note, base, priority, after)

    def _number(self, function: str) -> int:
        """As a note has it."""
        if function and function not in self._functions:
            raise InvalidArgumentError(
                f"function={function!r}: KV {self.name!r} has {', '.join(self._functions) or 'none'}; make it with"
                f" functions=[{function!r}]"
            )
        return self._functions.index(function) + 1 if function else 0

    def flush(self, *, priority: int | None = None, after: Sequence[Future] = ()) -> RowsFuture:
        """Contributes what filters have kept back so far: a push, also if that is nothing."""
        ids, rows = self._filters.rest()
        return self._contribute(self._splits.of(ids), rows, Note(), None, priority, after)

    def _contribute(
        self, split: RowSplit, array: Array, note: Note, base: int | None, priority: int | None,
        after: Sequence[Future],
    ) -> RowsFuture:  # fmt: skip
        rows = [one.of(array) for one in split.shards]
        if payloads := self._filters.payloads:
            number = next(self._pushed) % (1 << 32)
            rows = [
                payloads.encode(own, self._draw(one.shard, number)) for one, own in zip(split.shards, rows, strict=True)
            ]
        bases = self._bases(split, base)
        return self._calls.begin(partial(self._push, split, rows, note, bases, priority), after, note.weight)

    def _draw(self, shard: int, number: int) -> Draw:
        """Of the random numbers of a contribution."""
        key = self._table.declared.partitions[self._table.shards.firsts[shard]].key
        return Draw(key, number, self._worker.rank)

    def _bases(self, split: RowSplit, base: int | None) -> list[int]:
        """Of each shard the version that a contribution is computed on: where it has no rows, any."""
        if base is not None:
            return [base] * len(split.shards)
        pulled, newest = self._versions.pulled(), self._versions.newest()
        return [(pulled if len(one) else newest)[one.shard] for one in split.shards]

    def _push(
        self, split: RowSplit, rows: list[Array], note: Note, bases: Sequence[int], priority: int | None
    ) -> RowsFuture:
        groups: dict[tuple[bool, int], list[int]] = {}
        for one, known in zip(split.shards, bases, strict=True):
            groups.setdefault((len(one) == 0, known), []).append(one.shard)
        flights: dict[bool, list[PartsFlight]] = {False: [], True: []}
        with self._gate:
            for (is_idle, known), shards in groups.items():
                placed = [_rows_at(split.shards[shard], rows[shard]) for shard in shards]
                handle = self._table.push(placed, replace(note, base=known), priority=priority)
                held.hold(handle, rows)
                flights[is_idle].append(PartsFlight(handle, shards, known))
        return RowsFuture(flights[False], self._versions.heard, note.weight, self._worker.rank, idle=flights[True])

    def tick(self, *, priority: int | None = None, after: Sequence[Future] = ()) -> RowsFuture:
        """Contributes nothing: a clock of this rank goes by. See Store.tick; a push without keys is a contribution,
        which counts in a mean."""
        return self._calls.begin(partial(self._tick, priority), after)

    def _tick(self, priority: int | None) -> RowsFuture:
        shards: dict[int, list[int]] = {}
        for shard, known in enumerate(self._versions.newest()):
            shards.setdefault(known, []).append(shard)
        with self._gate:
            flights = [
                PartsFlight(self._table.tick(chosen, Note(base=known), priority=priority), chosen)
                for known, chosen in shards.items()
            ]
        return RowsFuture(flights, self._versions.noticed)

    def pull(
        self, keys: Any, out: Any = None, *, priority: int | None = None, after: Sequence[Future] = ()
    ) -> RowsFuture:
        """Reads the rows of some keys, once the policy lets this rank. Never blocks. They are the future's `value`, of
        shape [n, width]: `out` where it is given, of that shape, or [n] if the width is 1.

        Rows that there are not are zeros, or what `init` says. One version of the table at each shard, not of all
        together. Where `keys` is a tensor, so is the value. `after` and errors as of `push`.
        """
        split = self._splits.of(keys)
        if out is None:
            out = empty_beside(keys, (len(split.ids), self._width), self._dtype)
        shape = self._shape(split.ids, out)
        return self._calls.begin(partial(self._pull, split, out, shape, priority), after)

    def _pull(self, split: RowSplit, out: Any, shape: tuple[int, int], priority: int | None) -> RowsFuture:
        place = landing(out, self._dtype)
        target = place.array.reshape(shape)
        asked = [one for one in split.shards if len(one)]
        flights: list[PartsFlight] = []
        read: Callable[[], Sequence[Array]] = list
        if asked:
            handle, read = self._read(asked, target, priority)
            flights.append(PartsFlight(handle, [one.shard for one in asked]))
        return RowsFuture(
            flights, partial(self._pulled, split.ids, asked, read, target, place), out=lambda: FoundRows(split.ids, out)
        )

    def _read(
        self, asked: Sequence[ShardRows], target: Array, priority: int | None
    ) -> tuple[KeepHandle, Callable[[], Sequence[Array]]]:
        """Begins it. What each shard has brought, once it is done."""
        if self._filters.of_values:
            handle = self._table.pull_filtered([RowsAt(one.shard, one.rows, 0, 0) for one in asked], priority=priority)
            return handle, lambda: self._decoded(asked, handle.ranges())
        rows = [self._landing(one, target) for one in asked]
        placed = [_rows_at(one, at) for one, at in zip(asked, rows, strict=True)]
        plain = self._table.pull(placed, priority=priority)
        held.hold(plain, [target, *rows])
        return plain, lambda: rows

    def _decoded(self, asked: Sequence[ShardRows], payloads: Sequence[bytes]) -> Sequence[Array]:
        found, decode = zip(payloads, asked, strict=True), self._filters.of_values.decode
        try:
            return [decode(one, len(own) * self._width).reshape(-1, self._width) for one, own in found]
        except CorruptError as error:
            raise CorruptError(
                f"rank {self._worker.rank}: a server's answer to a pull of {self._table.declared.spec.name!r}: {error}",
                rank=self._worker.rank, operation="pull", key=self._table.declared.spec.name,
            ) from None  # fmt: skip

    def _landing(self, one: ShardRows, target: Array) -> Array:
        """Where its rows land: at their place, if they lie side by side there."""
        if isinstance(one.where, slice):
            return target[one.where]
        return np.empty((len(one), self._width), target.dtype)

    def _pulled(
        self, ids: Ids, asked: Sequence[ShardRows], read: Callable[[], Sequence[Array]], target: Array,
        place: ValueLanding, found: Found,
    ) -> None:  # fmt: skip
        for one, landed in zip(asked, read(), strict=True):
            if not np.may_share_memory(landed, target):
                target[one.where] = landed
        if self._filters.of_rows:
            self._filters.incoming(KeyedRows(ids, target))
        self._versions.heard(found)
        if place.finish:
            place.finish()

    def pull_range(
        self,
        low: int,
        high: int,
        *,
        since: RowsFuture | None = None,
        priority: int | None = None,
        after: Sequence[Future] = (),
    ) -> RowsFuture:
        """Reads all rows with keys from `low` to before `high`, at most 2^64 - 1, that there are: the future's `keys`
        and `value`, arrays. Never blocks. Otherwise as `pull`. A server's thread sends at most 1 GiB; `pull_all` reads
        more. `since`: an earlier range that was read; only rows that have changed since then. It must be of this world,
        and later than a `restore`.
        """
        _check_range(low, high)
        if since is not None and not since.done():
            after = (*after, since)
        return self._calls.begin(
            partial(self._pull_range, low, high, since, None, self._versions.heard, priority), after
        )

    def pull_all(self, since: RowsFuture | None = None) -> Iterator[RowsFuture]:
        """Reads all rows, in the order of their keys, in pieces of at most 256 MB: each is a range, which is there when
        it comes. `since`: the first piece of an earlier pass; only rows that have changed since then. Blocks."""
        return self._walk(self._versions.heard, since)

    def _walk(self, heard: Landed, since: RowsFuture | None) -> Iterator[RowsFuture]:
        row = 8 + self._width * self._dtype.itemsize
        most = max(_PIECE // len(self._table.shards.firsts) // row, 1)
        low = 0
        while low < END:
            piece = self._calls.begin(partial(self._pull_range, low, END, since, most, heard, None), ())
            low = piece.end
            yield piece

    def _pull_range(
        self, low: int, high: int, since: RowsFuture | None, most: int | None, heard: Landed, priority: int | None
    ) -> RowsFuture:
        shards = range(len(self._table.shards.firsts))
        known = [] if since is None else [since.versions[shard] for shard in shards]
        handle = self._table.pull_range(low, high, since=known, most=most or 0, priority=priority)
        return RowsFuture([PartsFlight(handle, shards)], heard, out=partial(self._found, handle, high, most))

    def _found(self, handle: RangeHandle, high: int, most: int | None) -> FoundRows:
        """Of all shards in the order of keys, as far as all have told."""
        kind = np.dtype(self._dtype.name.lower())
        each = [(one, len(one) // (8 + self._width * kind.itemsize)) for one in handle.ranges()]
        ids = np.concatenate([np.frombuffer(one, np.uint64, count) for one, count in each])
        rows = [
            np.frombuffer(one, kind, count * self._width, 8 * count).reshape(-1, self._width) for one, count in each
        ]
        ends = [int(np.frombuffer(one, np.uint64, count)[-1]) + 1 for one, count in each if count == most]
        end = min(ends, default=high)
        order = np.argsort(ids)
        order = order[: np.searchsorted(ids[order], np.uint64(end))]
        return FoundRows(ids[order], np.concatenate(rows)[order], end)

    def push_range(
        self, low: int, high: int, function: str, *, after: Sequence[Future] = (), **scalars: float
    ) -> dict[str, float]:
        """Has servers run a function on all rows with keys from `low` to before `high` that there are, and returns the
        numbers that come of it, summed over all. Blocks; one rank calls it, and nothing of the rows travels.

        `scale` multiplies them by a; others are those that servers know by `byteps_like.store.command`, which get a
        read-only array, or one to change in place, of shape [n, width] ([n] for a width of 1): the rows in the order of
        their keys, not all in one call. It sees what this rank has pushed before, as a pull does, and waits for the
        policy as that does; `after`: futures to wait for first. Rows that it changes have a new version; the state of
        their updates stays.

        Raises InvalidArgumentError for a range that can't be one, for a function that servers lack, wrong scalars, and
        where what is written isn't finite or the function raises an exception: no row on that shard is changed then.
        """
        _check_range(low, high)
        for future in after:
            future.wait()
        self._begin_all()
        with self._gate:
            handle = begin_call_on_rows([self._table], (low, high), function, scalars)
        return end_call(function, handle)

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Writes all rows, with their versions and the state of their updates, to a directory. See Store.checkpoint."""
        with self._all_begun() as saved:
            return save(saved, Path(path))

    def taken(self) -> Taken:
        """This rank's share of a checkpoint, in its memory. See Store.taken."""
        with self._all_begun() as saved:
            return take(saved)

    def leave(self, leaving: Iterable[int] = ()) -> Taken:
        """What goes on in the next world of an elastic job. See Store.leave."""
        with self._all_begun() as saved:
            return leave(saved, leaving)

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """Makes the rows those of the world before. See Store.take_over."""
        with self._all_begun() as saved:
            hand_over(saved, manifest, contents)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Makes the rows those of a checkpoint, from any number of ranks and servers: there are no others afterwards.
        See Store.restore."""
        with self._all_begun() as saved:
            restore(saved, Path(path))

    def state_dict(self) -> dict[str, Any]:
        """What `checkpoint` writes, in this rank's memory. See Store.state_dict; for values alone, `pull_range`."""
        with self._all_begun() as saved:
            return gather(saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes it what `state_dict` has given, in any job. All ranks call it with the same. See `restore`."""
        with self._all_begun() as saved:
            scatter(saved, state)

    def _begin_all(self) -> None:
        """Blocks until what waits for others has begun."""
        self._calls.begin(lambda: RowsFuture((), lambda _: None), ()).wait()

    @contextmanager
    def _all_begun(self) -> Iterator[SavedOnServers]:
        """Nothing is pushed in the block, and all that was called before has begun."""
        self._begin_all()
        with self._gate:
            yield SavedOnServers(self._saved_store())

    def _saved_store(self) -> SavedStore:
        kind = np.dtype(self._dtype.name.lower())
        state = math.prod(self._terms.update.state_shape((1, self._width)))
        saved = SavedTensor(
            kind.name, (self._width,), self._terms.kept_as, is_table=True,
            row_bytes=saved_row_bytes((self._width + state) * kind.itemsize),
        )  # fmt: skip
        assert isinstance(self._worker, Keeps)
        rows = Savable(self._table.declared, saved, self._versions)
        after = () if self.upper is None else (self.upper.restored,)
        return SavedStore(self.name, self._worker, self._worker, {ROWS: rows}, after)

    def _tensor(self) -> TensorSpec:
        """What servers are told of it."""
        return table_tensor(f"kv/{self.name}", self._dtype, self._terms.on_loss, self._terms.replicas)

    def _keep(self) -> KeptTable:
        (declared,) = self._worker.declare([self._tensor()])
        return self._keeper().keep_table(declared, self._spec())

    def _keeper(self) -> KeepsTables:
        if not isinstance(self._worker, KeepsTables):
            raise InvalidArgumentError(
                f"rank {self._worker.rank}: KV {self.name!r} needs servers, and this job has none that can keep tables;"
                " start some (byteps-like run -s 1)",
                rank=self._worker.rank,
                operation="KV",
            )
        return self._worker

    def _spec(self) -> TableSpec:
        return TableSpec(*self._terms.texts, self._width, filters=self._filters.text, replicas=self._terms.replicas,
                         functions=" ".join(self._functions), first_values=self._first_values.text())  # fmt: skip

    def _checked(self, terms: StoreTerms) -> StoreTerms:
        dtype = self._dtype.name.lower()
        if not 1 <= self._width * self._dtype.itemsize <= LARGEST_PARTITION:
            raise InvalidArgumentError(
                f"width={self._width} of KV {self.name!r}: a row has from 1 element to {LARGEST_PARTITION} bytes"
            )
        if isinstance(terms.update, NoUpdate):
            raise InvalidArgumentError(f"KV {self.name!r}: update none has no values, only rounds: use another")
        if not terms.update.takes(np.dtype(dtype)):
            raise InvalidArgumentError(f"KV {self.name!r}: update {terms.update.name} takes no values of {dtype}")
        if self._dtype is DType.INT64 and not terms.combining.adds_integers:
            raise InvalidArgumentError(f"KV {self.name!r}: integers can only be summed, without age and damp")
        return terms

    def _shape(self, ids: Ids, values: Any) -> tuple[int, int]:
        """That of rows for these, as which `values` must be given. Raises InvalidArgumentError if they are not."""
        wanted = len(ids), self._width
        if shape_of(values) != wanted and not (self._width == 1 and shape_of(values) == wanted[:1]):
            raise InvalidArgumentError(
                f"KV {self.name!r}: {list(shape_of(values))} is not the shape of rows for {len(ids)} keys, which is"
                f" {list(wanted)}"
            )
        if len(ids) * self._width * self._dtype.itemsize > LARGEST_PARTITION:
            raise InvalidArgumentError(
                f"KV {self.name!r}: {len(ids)} rows have over {LARGEST_PARTITION} bytes: push and pull fewer at once"
            )
        return wanted


class _Beside(KV):
    """Rows that are assigned, on the shards of those of another one with the same keys."""

    def __init__(self, other: KV) -> None:
        self._other = other._tensor()
        dtype = other._dtype.name.lower()
        super().__init__(f"{other.name}/above", other._width, dtype, update="assign", worker=other._worker)

    def _tensor(self) -> TensorSpec:
        return replace(super()._tensor(), beside=self._other.name)


_PIECE = 256 << 20
"""Bytes that are read at a time, where all rows are."""


def _check_range(low: int, high: int) -> None:
    if not 0 <= low <= high < 1 << 64:
        raise InvalidArgumentError(f"low={low}, high={high}: a range begins at 0 or later, and ends by 2^64 - 1")


def _rows_at(one: ShardRows, array: Array) -> RowsAt:
    return RowsAt(one.shard, one.rows, array.ctypes.data, array.nbytes)


def _consistency(delay: float | None, consistency: Policy | str | None) -> Policy | str:
    if delay is None:
        return "asp" if consistency is None else consistency
    if consistency is not None:
        raise InvalidArgumentError(f"delay={delay!r} means a consistency: give it, or consistency={consistency!r}")
    if delay == math.inf:
        return Asp()
    if delay != int(delay):
        raise InvalidArgumentError(f"delay={delay!r}: a rank is ahead by whole pushes, or math.inf")
    return Ssp(int(delay))
