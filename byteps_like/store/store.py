"""Named tensors whose values servers keep: what users push to and pull from."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.compression.codec import Codec
from byteps_like.config_values import LARGEST_PARTITION
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.arrays import Array, kept_type, landing, outgoing, shape_of
from byteps_like.store.combining.registry import combining_by
from byteps_like.store.filters.encoder import Pushed, codec_filter, encoder_of, feedback_share
from byteps_like.store.filters.filter import PayloadFilter
from byteps_like.store.filters.payloads import Payloads, payload_filters
from byteps_like.store.functions.calling import begin_call, end_call
from byteps_like.store.future import Future, Landed, PartsFlight
from byteps_like.store.keeper import check_change, keeper_of
from byteps_like.store.memory.unlocked import UnlockedTensor
from byteps_like.store.open_tensor import OpenTensor
from byteps_like.store.policies.bounded import Asp
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import text_of
from byteps_like.store.policies.unlocked import Hogwild
from byteps_like.store.portions import BOARD, Passes, Portion, board_of
from byteps_like.store.saving.carrying import hand_over
from byteps_like.store.saving.checkpoint import Taken, leave, restore, save, take
from byteps_like.store.saving.keys import Savable, SavedStore
from byteps_like.store.saving.manifest import Manifest, SavedTensor
from byteps_like.store.saving.memory import gather, scatter
from byteps_like.store.saving.on_servers import SavedOnServers
from byteps_like.store.saving.saved import Saved, SavedContent
from byteps_like.store.terms import StoreTerms, policy_for, terms_of
from byteps_like.store.updates.adagrad import RowAdagrad
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.store.upper.above import Above, check_below
from byteps_like.store.upper.tensors import TensorSite, ValuesAbove, exchange_tensors, tensors_above
from byteps_like.store.upper.upper import Upper
from byteps_like.store.versions import Found
from byteps_like.wire.note import Note, NoteBit
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.current import current
from byteps_like.worker.keeping import KeepHandle, KeepSpec

ROOT = 0
"""The rank whose values the others begin with."""


class Store:
    """Named tensors whose values the job's servers keep; each has a version for each of its partitions. Thread-safe.

    A rank's calls for one tensor happen in their order: a pull sees what the rank has pushed before.
    """

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, Any],
        *,
        consistency: Policy | str = "bsp",
        update: ValueUpdate | str = "add",
        whole: bool = False,
        init: str = "root",
        combine: str = "mean",
        age: str | None = None,
        damp: str | None = None,
        together: bool = True,
        codec: Codec | str = "",
        feedback: float | None = None,
        filters: Sequence[PayloadFilter | str] = (),
        upper: Upper | None = None,
        on_loss: str | None = None,
        replicas: int | None = None,
        worker: Worker | None = None,
    ) -> None:
        """All ranks make it, with the same arguments, and tensors of the same names, shapes and dtypes: NumPy's arrays
        or PyTorch's tensors of float32, float64, int64, float16 or bfloat16; the last two are kept as float32.

        `consistency`: when a version is made and who waits for it (docs/how-to/consistency.md). `update`: what a
        version does to the value. `combine`: "mean" (by weights) or "sum", of what a version is made of, or
        GradientCoding's `combine`; integers have no mean. "factors" is the mean ("factors:combine=sum" the sum) of
        products, which servers form of two factors of each matrix, see `push`; other tensors are pushed as they are.
        `age`: a factor of weights, "inverse" or "exp", by how old they are; `damp`: the same outside of the mean.
        `whole`: tensors are not cut, which lars and lamb need. `init`: "root", values begin as those of rank 0's
        `tensors`, or "zeros"; a value that servers have already, under this name, stays. `together`: tensors of one
        shape and dtype are cut alike and kept on the same shards, which `call` needs; without it each is placed for
        itself, which balances many small ones better. `codec`: contributions travel encoded by it, such as "int8" or
        "topk:ratio=0.01" (docs/how-to/compression.md), and servers decode each as it comes; values are not read through
        it. `feedback`, from 0 to 1: how much of what a codec leaves out comes with the next contribution; None: all, of
        a biased codec where the update adds up (add, sgd, momentum, nesterov, proximal). `filters`: what contributions
        go through besides, which servers undo, and values when they are read, such as "float:bytes=2" or "zlib"
        (docs/how-to/key-value.md). `upper`: a group of servers above those of this job and of other sites, with whose
        values this store begins then (docs/how-to/sites.md). `on_loss`: when a rank dies, "raise" ends the job on all
        others, naming it; with "finish" in all stores of the job they go on without it, and what it has pushed counts
        (docs/how-to/survive-losses.md); by default "finish" in elastic jobs, else
        "raise". `replicas`: on how many servers each value is, so that the job goes on with a copy when a server is
        gone; by default on two in elastic jobs that have them, else on one (docs/how-to/elastic.md). `worker`: whose
        job it is, where this process is in several.

        Blocks until each value is there. Raises MismatchError where ranks differ, and InvalidArgumentError for a policy
        that so many ranks can't have, tensors that can't be kept or combined so, and a job without servers, which only
        hogwild needs none of: its values are in memory that the ranks of a host share.
        """
        self.name = name
        self._worker = worker or current()
        combining = combining_by(combine, age, damp)
        self._terms = terms_of(self._worker, consistency, update, combining, init, on_loss, replicas)
        encoding = codec_filter(codec)
        self._feedback = feedback_share(feedback, encoding, self._terms.update)
        self._filters = (*encoding, *payload_filters(filters))
        arrays = {key: outgoing(value, kept_type(value)) for key, value in tensors.items()}
        self._kinds = {key: (kept_type(value), shape_of(value)) for key, value in tensors.items()}
        self._whole, self._together = whole, together
        specs = self._specs()
        if isinstance(self._terms.policy, Hogwild) and any(self._filters_of(spec.shape) for spec in specs):
            raise InvalidArgumentError(
                f"store {name!r}: with hogwild nothing is sent, so a codec, factors and filters have nothing to do"
            )
        self.upper = None if upper is None else self._below(upper, specs, arrays)
        """Exchanges with the upper group; None: there is none."""
        self._gate = threading.RLock()
        self._passes: dict[int, Passes] = {}
        self._open = dict(zip(tensors, self._keep(specs, list(arrays.values())), strict=True))
        if upper is not None and self.upper is not None:
            self._start(upper, self.upper, arrays)

    def _specs(self) -> list[TensorSpec]:
        """What servers are told of the tensors, in their order."""
        specs = [
            _tensor_spec(f"store/{self.name}/{key}", dtype, shape, self._terms, self._whole)
            for key, (dtype, shape) in self._kinds.items()
        ]
        return _beside_one_another(specs) if self._together else specs

    def reopen(self, worker: Worker | None = None) -> None:
        """Has servers of the next world of an elastic job keep it, with zeros at first: `take_over` gives it the values
        of the world before. What a codec has left out stays this rank's. All ranks that had the store call
        it, and others make it. Blocks, and raises, as making it does; InvalidArgumentError for a store with an upper
        group, which is of one world."""
        if self.upper is not None:
            raise InvalidArgumentError(f"store {self.name!r} has an upper group, so it is of one world: restore a cut")
        with self._gate:
            residuals = self.residuals()
            self._worker = worker or current()
            self._terms = self._terms.again(self._worker)
            self._passes.clear()
            zeros = [np.zeros(shape, dtype.name.lower()) for dtype, shape in self._kinds.values()]
            self._open = dict(zip(self._kinds, self._keep(self._specs(), zeros), strict=True))
            for name, residual in residuals.items():
                self.owe(name, residual)

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """Makes values, states and versions those of the world before: `contents` are in this rank's memory, or say
        where servers have set them aside (see `leave`). All ranks call it; blocks until all are there. Raises
        ValuesLostError where a server is gone that had some."""
        with saved_together(self.name, [self]) as saved:
            hand_over(saved, manifest, contents)

    def _below(self, upper: Upper, specs: Sequence[TensorSpec], arrays: dict[str, Array]) -> Above[ValuesAbove]:
        """What it has of the upper group, whose values `arrays` become on rank 0."""
        check_below(self._terms, specs, upper)
        keeper_of(self._terms.policy, self._worker, self.name)
        make = np.copy if self._terms.from_root else np.zeros_like
        arrays.update({key: make(value) for key, value in arrays.items()})
        self._terms = replace(self._terms, from_root=True)
        return Above(upper, self._worker.rank, lambda worker: tensors_above(upper, self.name, arrays, Store, worker))

    def _start(self, upper: Upper, above: Above[ValuesAbove], arrays: Mapping[str, Array]) -> None:
        """All ranks make places for the upper group's values beside the store's own; rank 0 exchanges these."""
        keeper = keeper_of(self._terms.policy, self._worker, self.name)
        saved = self._saved()
        kept = {key: one.kept for key, one in self._open.items()}

        def versions() -> dict[str, int]:
            heads, found = saved.heads(saved.keys), dict[str, int]()
            for one in saved.keys:
                version = heads[one.key].version
                found[one.tensor] = min(found.get(one.tensor, version), version)
            return found

        def pull(name: str, out: Array) -> Future:
            tensor = self._tensor(name)
            return self._read(tensor, out, tensor.parts(None), tensor.noticed)

        site = TensorSite(kept, pull, keeper, self._gate)
        above.start(self.name, versions, exchange_tensors(upper, site, self._worker, arrays, above.store))

    def change(self, consistency: Policy | str) -> None:
        """From here on another policy holds for all tensors, for contributions that wait, too. All ranks call it, each
        after its own pushes so far; blocks until all have, unless it is in force already. Those who have not are not
        kept waiting for those who have.

        Raises InvalidArgumentError for a policy that so many ranks, this update or this way of combining can't have,
        and MismatchError where ranks ask for different ones.
        """
        for handle in self.start_change(consistency):
            handle.wait()

    def start_change(self, consistency: Policy | str) -> list[KeepHandle]:
        """As `change`, but it never blocks: that is over when all handles are done."""
        policy = policy_for(self._worker, consistency, self._terms.update, self._terms.combining)
        check_change(self._terms.policy, policy)
        self._terms = replace(self._terms, policy=policy)
        return [
            one.kept.change(_keep_spec(one.kept.declared.spec, self._terms, one.filters)) for one in self._open.values()
        ]

    def start_finish(self) -> list[KeepHandle]:
        """This rank contributes no more, and nobody waits for it. Never blocks. All ranks call it; when all handles are
        done they have, and of contributions that were left versions have been made, if that is possible."""
        return self.start_change(self._terms.combining.last(self._terms.policy, self._worker.size))

    def finish(self) -> None:
        """This rank contributes no more, and the others don't wait for it. Blocks until all ranks have called it: then
        contributions that were left count, too, if that is possible, and values were exchanged with the upper group for
        the last time. Raises on all ranks why that is not so."""
        for handle in self.start_finish():
            handle.wait()
        self._worker.barrier()  # where the last policy was in force before, nobody has waited for the others
        if self.upper is not None:
            self.upper.finish(saved_together(self.name, [self]))

    def exchange_above(self) -> bool:
        """Exchanges values with the upper group once more, with all contributions so far. All ranks call it; blocks
        until it is done. Returns whether there is an upper group. Raises on all ranks why that is lost."""
        if self.upper is None:
            return False
        self.upper.exchange(saved_together(self.name, [self]))
        return True

    @property
    def consistency(self) -> str:
        """The policy in force, as text."""
        return text_of(self._terms.policy)

    def _filters_of(self, shape: tuple[int, ...]) -> tuple[PayloadFilter, ...]:
        return (*self._terms.combining.filters(shape), *self._filters)

    def _keep(self, specs: Sequence[TensorSpec], arrays: Sequence[Any]) -> Iterator[OpenTensor]:
        keeper = keeper_of(self._terms.policy, self._worker, self.name)
        for declared, array in zip(self._worker.declare(specs), arrays, strict=True):
            payloads = Payloads(self._filters_of(declared.spec.shape), declared.spec.dtype)
            spec = _keep_spec(declared.spec, self._terms, payloads.text)
            initial = array.ctypes.data if spec.root == self._worker.rank else 0
            yield OpenTensor(keeper.keep(declared, spec, initial), encoder_of(payloads, self._feedback))

    def push(
        self,
        name: str,
        value: Any,
        *,
        part: int | range | None = None,
        base: int | None = None,
        weight: float = 1.0,
        lr: float | None = None,
        loss: float = math.nan,
        last: bool = True,
        priority: int | None = None,
    ) -> Future:
        """Contributes `value`, of the tensor's shape, to it. Never blocks. Done when servers have applied it, or not.

        With combine="factors" also two factors of a matrix of M x N: a tuple of arrays of [K, M] and [K, N], with any
        numbers of dimensions in place of K, for the transpose of the first times the second.

        A contiguous array of the type that is kept is sent from its own memory, and must stay as it is until then;
        anything else is copied first. `part`: only these partitions of it, by number or range (see `slices`). `base`:
        the version that it was computed on; None: of each partition the one that was pulled last. `weight`: what it
        counts beside others. `lr`: instead of the update's own. `loss`: of the step, for servers. `last`: False of a
        block, behind which others follow of what this rank has set out to contribute (see `cut_off`); a version counts
        a rank as there once it has its last block. `priority`: greater goes first. Raises InvalidArgumentError for
        arguments out of bounds, and the job's error once it has failed.
        """
        tensor = self._tensor(name)
        integers = tensor.kept.declared.spec.dtype is DType.INT64
        self._terms.check_push(weight, lr, integers=integers, last=last)
        note = Note(
            weight=weight,
            lr=math.nan if lr is None else lr,
            loss=loss,
            bits=NoteBit.LAST_BLOCK if last else NoteBit.PARTIAL,
        )
        return self._push(tensor, tensor.taken(value), part, note, base, priority)

    def cut_off(self, name: str) -> tuple[int, ...]:
        """Partitions of which servers have enough without this rank's next contribution: they wait for the rest of the
        policy's `grace`, then make a version. What of it is finished may be pushed with last=False, to be part of that
        version; what is pushed later with last=True is then the rest. Never blocks; raises the job's error."""
        return tuple(self._tensor(name).kept.cut_off())

    def pull(
        self, name: str, out: Any, *, part: int | range | None = None, version: int | None = None,
        priority: int | None = None,
    ) -> Future:  # fmt: skip
        """Reads the value to `out`, of the tensor's shape, once the policy lets this rank. Never blocks.

        `part`: only these partitions of it. `version`: that or a newer one. Where `out` is not a contiguous array of
        the type that is kept, it has the value after `wait`. One version of each partition, not of all together.
        """
        tensor = self._tensor(name)
        self._check_shape(tensor, out)
        return self._read(tensor, out, tensor.parts(part), tensor.heard, version or 0, priority)

    def _read(
        self, tensor: OpenTensor, out: Any, parts: range, heard: Landed, least: int = 0, priority: int | None = None
    ) -> Future:
        place = landing(out, tensor.kept.declared.spec.dtype)
        if place.finish and len(parts) < len(tensor.kept.declared.partitions):
            place.array[...] = outgoing(out, tensor.kept.declared.spec.dtype)
        handle, read = tensor.read(place.array, parts, least, priority, self._worker.rank)

        def landed(found: Found) -> None:
            read()
            heard(found)
            if place.finish:
                place.finish()

        return Future([PartsFlight(handle, parts)], landed)

    def push_pull(self, name: str, value: Any, out: Any, **push: Any) -> Future:
        """`push`, then `pull` of the same partitions: the future of both. `value` and `out` may be the same."""
        tensor = self._tensor(name)
        self._check_shape(tensor, out)
        pushed = tensor.taken(value)
        if isinstance(pushed, np.ndarray) and np.may_share_memory(
            pushed, landing(out, tensor.kept.declared.spec.dtype).array
        ):
            value = pushed.copy()
        contributed = self.push(name, value, **push)
        pulled = self.pull(name, out, part=push.get("part"), priority=push.get("priority"))
        return contributed.followed_by(pulled)

    def tick(self, name: str | None = None, *, priority: int | None = None) -> Future:
        """Contributes nothing to a tensor, or to all: a clock of this rank goes by, so that nobody waits for what it
        might have brought. Never blocks. Done when servers have taken note.

        It is in no mean and no sum. Where all ranks tick, a round makes a version that changes nothing. For steps that
        don't use a tensor, and ranks that have run out of samples.
        """
        tensors = list(self._open.values()) if name is None else [self._tensor(name)]
        ticks = [self._tick(tensor, priority) for tensor in tensors]

        def landed(found: Found) -> None:
            rest = iter(found)
            for tensor, flights in zip(tensors, ticks, strict=True):
                tensor.noticed(list(islice(rest, len(flights))))

        return Future([one for flights in ticks for one in flights], landed)

    def call(
        self, function: str, names: str | Sequence[str], *, after: Sequence[Future] = (), **scalars: float
    ) -> dict[str, float]:
        """Has servers run a function on what they keep of some tensors, and returns the numbers that come of it, summed
        over all partitions. Blocks; one rank calls it, and nothing of the tensors travels.

        `dot` gives the scalar product {"dot": x · y} of names [x, y], in fp64; `axpy` adds a·x to y; `scale` multiplies
        x by a; `copy` makes y what x is. Others are those that servers know by `byteps_like.store.command`. It sees
        what this rank has pushed before, as a pull does, and waits for the policy as that does; `after`: futures to
        wait for first. What it changes has a new version in each partition.

        Raises InvalidArgumentError where the tensors don't lie together (they do in one store, if of one shape and
        dtype), for a function that servers lack, wrong scalars, and where what is written isn't finite or the function
        raises an exception: no part on that shard is changed then.
        """
        chosen = [names] if isinstance(names, str) else list(names)
        tensors = [self._tensor(name).kept.declared for name in chosen]
        for future in after:
            future.wait()
        with self._gate:
            handle = begin_call(keeper_of(self._terms.policy, self._worker, self.name), tensors, function, scalars)
        return end_call(function, handle)

    def portions(self, count: int, duplicate: bool = True) -> Iterator[Portion]:
        """One pass over work in `count` portions: those that this rank does, one at a time, until all are done.

        All ranks run it, as often as one another, each taking the next portion when it has done one; a rank that comes
        late finds the pass over. Rank 0 begins it: what that does between two passes comes before the second. With
        `duplicate`, portions that others have not done yet when none is left are given once more, the oldest first.
        Whoever is first to `Portion.push` its result counts. A pass ends when all that counts is on servers.

            for portion in store.portions(20):
                portion.push("gradient", gradient_of(samples[portion.number]))

        Needs consistency="asp", where each contribution counts for itself, at once. Raises InvalidArgumentError without
        it, and for a count of none; blocks, and raises, as `call`.
        """
        if not isinstance(self._terms.policy, Asp):
            raise InvalidArgumentError(f"store {self.name!r} is {self.consistency}: portions need consistency='asp'")
        with self._gate:
            if count not in self._passes:
                empty = {BOARD: board_of(count)}
                board = Store(f"{self.name}.portions.{count}", empty, consistency="asp", combine="sum", init="zeros",
                              on_loss=self._terms.on_loss, worker=self._worker)  # fmt: skip
                self._passes[count] = Passes(board, count, self._worker.rank, self.push)
        return self._passes[count].run(duplicate)

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Writes values, the state of their updates and their versions to a directory, which all ranks reach by this
        path. All ranks call it, each after its own pushes so far, and these are in it, unless they wait for others to
        make a version: a contribution is in it, or it isn't, in all that it is part of. Returns the version that it
        has: the least of all partitions'.

        Blocks until it is whole on the disk; this rank's pushes and calls from other threads wait meanwhile, and nobody
        waits for those who have come early. A checkpoint of this store that is there already stays as it is until
        then. Raises SystemCallError (with the path) where the disk is full, MismatchError where ranks give different
        paths, PeerLostError where one has left, and InvalidArgumentError with hogwild, whose values are your own
        memory.
        """
        with saved_together(self.name, [self]) as saved:
            return save(saved, Path(path))

    def taken(self) -> Taken:
        """This rank's share of a checkpoint, in its memory, for whoever writes it while training goes on: see
        bps.elastic.save. All ranks call it, as `checkpoint`; blocks until all have theirs. Raises as `checkpoint`."""
        with saved_together(self.name, [self]) as saved:
            return take(saved)

    def leave(self, leaving: Iterable[int] = ()) -> Taken:
        """What goes on in the next world of an elastic job (see bps.elastic.run): where servers have set it aside, or,
        where these don't go on, this rank's share; ranks that are `leaving` the job have none. All ranks call it, as
        `checkpoint`, and contribute nothing any more. Raises as `checkpoint`."""
        with saved_together(self.name, [self]) as saved:
            return leave(saved, leaving)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Makes values, states and versions those of a checkpoint, from any number of ranks and servers. All ranks call
        it; contributions that wait are late, and it is as if all had pulled. The ranks' own clocks go on.

        Blocks until it is so on all servers. Raises MismatchError (with both texts) where the checkpoint has other
        tensors, or another update or way of combining; CorruptError naming the file where something of it is missing,
        cut off, or damaged: nothing is changed on any server then.
        """
        with saved_together(self.name, [self]) as saved:
            restore(saved, Path(path))

    def state_dict(self) -> dict[str, Any]:
        """What `checkpoint` writes, of one cut, in this rank's memory: a dict of plain values and NumPy arrays; that of
        tensor w is `["tensors"]["w"]["value"]`. All ranks call it, and each gets all of it. Raises as `checkpoint`."""
        with saved_together(self.name, [self]) as saved:
            return gather(saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes it what `state_dict` has given, in any job. All ranks call it with the same. See `restore`."""
        with saved_together(self.name, [self]) as saved:
            scatter(saved, state)

    def _saved(self) -> SavedStore:
        keeper = keeper_of(self._terms.policy, self._worker, self.name)
        tensors = {
            name: Savable(
                one.kept.declared,
                SavedTensor(
                    one.kept.declared.spec.dtype.name.lower(), one.kept.declared.spec.shape, self._terms.kept_as
                ),
                one,
            )
            for name, one in self._open.items()
        }  # fmt: skip
        after = () if self.upper is None else (self.upper.restored,)
        return SavedStore(self.name, self._worker, keeper, tensors, (self._restored, *after))

    def _restored(self, _: Saved) -> None:
        for tensor in self._open.values():
            tensor.encoder.begin_anew()

    def versions(self, name: str) -> tuple[int, ...]:
        """Of each partition, that which this rank has pulled last; 0 before."""
        return self._tensor(name).pulled()

    def slices(self, name: str) -> tuple[slice, ...]:
        """Of each partition, which elements it has, in C order."""
        return self._tensor(name).slices()

    def residual(self, name: str) -> Array:
        """What a codec has left out of this rank's contributions to a tensor, and its next one brings: float32, all
        elements in C order, a copy; zeros without feedback."""
        with self._gate:
            return self._tensor(name).residual()

    def residuals(self) -> dict[str, Array]:
        """Those of all tensors of which a codec has left out something."""
        found = {name: self.residual(name) for name in self._open}
        return {name: residual for name, residual in found.items() if residual.any()}

    def owe(self, name: str, residual: Array) -> None:
        """Makes that what `residual` has given, on this rank or another: where training goes on that was saved."""
        with self._gate:
            self._tensor(name).owe(residual)

    def view(self, name: str) -> Array:
        """With hogwild, the value itself: an array of the tensor's shape in memory that all ranks share. What is
        written to it is there for all of them at once, and is no contribution. Raises InvalidArgumentError where
        servers keep it."""
        kept = self._tensor(name).kept
        if isinstance(kept, UnlockedTensor):
            return kept.view
        raise InvalidArgumentError(
            f"servers keep {name!r} of store {self.name!r} ({self.consistency}), so there is nothing to write to:"
            " pull and push it, or use consistency='hogwild', for ranks of one host"
        )

    def _push(
        self,
        tensor: OpenTensor,
        pushed: Pushed,
        part: int | range | None,
        note: Note,
        base: int | None,
        priority: int | None,
    ) -> Future:
        flights = []
        with self._gate:
            for parts, known in tensor.by_base(tensor.parts(part), base):
                handle = tensor.push(pushed, parts, replace(note, base=known), priority, self._worker.rank)
                flights.append(PartsFlight(handle, parts, known))
        return Future(flights, tensor.heard, note.weight, self._worker.rank)

    def _tick(self, tensor: OpenTensor, priority: int | None) -> list[PartsFlight]:
        with self._gate:
            return [
                PartsFlight(tensor.kept.tick(Note(base=known), parts=parts, priority=priority), parts)
                for parts, known in tensor.by_base(tensor.parts(None), None)
            ]

    def _tensor(self, name: str) -> OpenTensor:
        if name not in self._open:
            raise InvalidArgumentError(f"store {self.name!r} has no {name!r}; it has {', '.join(self._open)}")
        return self._open[name]

    def _check_shape(self, tensor: OpenTensor, value: Any) -> None:
        spec = tensor.kept.declared.spec
        if shape_of(value) != spec.shape:
            raise InvalidArgumentError(
                f"{spec.name!r} has the shape {list(spec.shape)}, not {list(shape_of(value))}: give one of its shape"
            )


@contextmanager
def saved_together(name: str, stores: Sequence[Store]) -> Iterator[SavedOnServers]:
    """Stores, whose tensors have different names, as one thing to save. Meanwhile nothing is pushed to any of them."""
    with ExitStack() as gates:
        for store in stores:
            gates.enter_context(store._gate)
        each = [store._saved() for store in stores]
        tensors = {key: one for some in each for key, one in some.tensors.items()}
        after = tuple(call for some in each for call in some.after_restore)
        yield SavedOnServers(replace(each[0], name=name, tensors=tensors, after_restore=after))


def _keep_spec(tensor: TensorSpec, terms: StoreTerms, filters: str) -> KeepSpec:
    root = ROOT if terms.from_root else None
    width = _row(tensor.shape, terms)
    return KeepSpec(*terms.texts, width, root, filters, terms.replicas)


def _row(shape: tuple[int, ...], terms: StoreTerms) -> int:
    """Elements of what has a state of its own."""
    return max(math.prod(shape[1:]), 1) if isinstance(terms.update, RowAdagrad) else 1


def _tensor_spec(name: str, dtype: DType, shape: tuple[int, ...], terms: StoreTerms, whole: bool) -> TensorSpec:
    nbytes = math.prod(shape) * dtype.itemsize
    if not terms.update.takes(np.dtype(dtype.name.lower())):
        raise InvalidArgumentError(f"{name!r}: update {terms.update.name} takes no values of {dtype.name.lower()}")
    if dtype is DType.INT64 and not terms.combining.adds_integers:
        raise InvalidArgumentError(f"{name!r}: integers can only be summed: use combine='sum', without age and damp")
    if terms.update.whole and not whole:
        raise InvalidArgumentError(f"{name!r}: update {terms.update.name} takes norms of the tensor: use whole=True")
    if whole and nbytes > LARGEST_PARTITION:
        raise InvalidArgumentError(f"{name!r} has {nbytes} bytes: at most {LARGEST_PARTITION} stay whole")
    uncut = math.lcm(_row(shape, terms), *(one.whole for one in terms.combining.filters(shape)))
    row = nbytes if whole else uncut * dtype.itemsize
    return TensorSpec(
        name, dtype, shape, row_bytes=row if row > dtype.itemsize else 0, on_loss=terms.on_loss, replicas=terms.replicas
    )


def _beside_one_another(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Each beside the first of its shape and dtype."""
    first: dict[tuple[DType, tuple[int, ...]], str] = {}
    return [
        replace(spec, beside=name) if (name := first.setdefault((spec.dtype, spec.shape), spec.name)) != spec.name
        else spec
        for spec in specs
    ]  # fmt: skip
