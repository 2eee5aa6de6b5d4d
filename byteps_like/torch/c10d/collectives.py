"""The collectives of a process group, under the names by which torch calls them, of this and earlier releases.

All return a Work at once. Buffers belong to the call until it is done. Raise InvalidArgumentError, naming operation
and argument, for what this rank can see is wrong; what ranks disagree about is raised by the Work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.c10d.device_calls import premultiplied
from byteps_like.torch.c10d.launch import Launching, Tensors
from byteps_like.torch.c10d.routing import collective
from byteps_like.torch.c10d.tensors import (
    even_count,
    is_premultiplied,
    movable,
    one,
    parts,
    reduction,
    same_type,
    split_counts,
    usable,
)
from byteps_like.torch.c10d.work import Work
from byteps_like.torch.calls.opaque import opaque
from byteps_like.torch.device.tensors import reducible


class Collectives(Launching):
    """Mixed into ProcessGroup."""

    # ---- reductions

    @collective
    def allreduce(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Every rank gets the reduction, in place. `opts`: torch's AllreduceOptions, or a ReduceOp.

        Of a sparse COO tensor, which may have other entries on each rank, the sum or average, coalesced.
        """
        options = self._options(opts) if timeout is None else self.defaults.get(timeout)
        if tensors.__class__ is list and len(tensors) == 1 and getattr(tensors[0], "layout", None) is torch.sparse_coo:
            return self._sum_sparse(tensors[0], opts, options)
        tensor = one(tensors, "allreduce", "tensors")
        op = reduction(opts, tensor, "allreduce")
        source = premultiplied(opts, tensor)
        address = tensor.data_ptr()
        begin = address if source is tensor else source.data_ptr()
        operation = self.group.all_reduce(begin, address, tensor.numel(), reducible(tensor, "allreduce"), op, options)
        return self._work(operation, [tensor], source)

    def _sum_sparse(self, tensor: torch.Tensor, opts: Any, options: CallOptions) -> Work:
        op = reduction(opts, tensor, "allreduce")
        if is_premultiplied(opts):
            raise InvalidArgumentError("allreduce: sparse tensors can't be reduced with PREMUL_SUM; use SUM or AVG")
        return self._work(self.sparse_sums().start(tensor, op, self.group, options.timeout), [tensor], None)

    @opaque
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Several at once, all with one operation."""
        for number, tensor in enumerate(tensors):
            usable(tensor, "allreduce_coalesced", f"tensors[{number}]")
            reduction(opts, tensor, "allreduce_coalesced")
            reducible(tensor, "allreduce_coalesced")
        return self._started([self.allreduce([tensor], opts) for tensor in tensors], list(tensors))

    @collective
    def reduce(self, tensors: Tensors, opts: Any = None, op: Any = None) -> Work:
        """The root, `opts.rootRank` (or a number), gets the reduction in place; the others' tensors stay."""
        tensor = one(tensors, "reduce", "tensors")
        kind = op if isinstance(opts, int) else opts
        code = reduction(kind, tensor, "reduce")
        source = premultiplied(kind, tensor)
        place = tensor.data_ptr()
        operation = self.group.reduce(
            source.data_ptr(), place, tensor.numel(), reducible(tensor, "reduce"), code, _root(opts),
            self._options(opts),
        )  # fmt: skip
        return self._work(operation, [tensor], source)

    @collective
    def reduce_scatter(self, output: Tensors, inputs: Any, opts: Any = None) -> Work:
        """Rank r gets the reduction of all ranks' `inputs[0][r]`; parts may differ in size."""
        target = one(output, "reduce_scatter", "output")
        given = _inner(inputs, "reduce_scatter", "input_list")
        op = reduction(opts, target, "reduce_scatter")
        source = [premultiplied(opts, tensor) for tensor in given]
        addresses, counts = parts(source, self.group.size, target, "reduce_scatter", "input_list")
        _same_count(target.numel(), counts[self.group.rank], "reduce_scatter", "output", "input_list[rank]")
        dtype = reducible(target, "reduce_scatter")
        operation = self.group.reduce_scatter(addresses, target.data_ptr(), counts, dtype, op, self._options(opts))
        return self._work(operation, [target], source)

    @collective
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Rank r gets the reduction of all ranks' r-th part of `input`, whose parts are of `output`'s size."""
        name, size = "reduce_scatter_single", self.group.size
        usable(output, name, "output")
        usable(input, name, "input")
        same_type(output, input, name, "output")
        count = output.numel()
        _same_count(input.numel(), count * size, name, "input", f"{size} outputs")
        op = reduction(opts, input, name)
        source = premultiplied(opts, input)
        operation = self.group.reduce_scatter(
            source.data_ptr(), output.data_ptr(), [count] * size, reducible(input, name), op, self._options(opts)
        )
        return self._work(operation, [output], source)

    _reduce_scatter_base = reduce_scatter_single

    @opaque
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Several at once."""
        pairs = zip(outputs, inputs, strict=True)
        return self._started([self.reduce_scatter_single(*pair, opts) for pair in pairs], list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- what moves data only

    @collective
    def broadcast(self, tensors: Tensors, opts: Any = 0) -> Work:
        """Every rank gets the tensor of the root, `opts.rootRank` (or a number)."""
        tensor = one(tensors, "broadcast", "tensors")
        dtype, each = movable(tensor)
        operation = self.group.broadcast(
            tensor.data_ptr(), tensor.numel() * each, dtype, _root(opts), self._options(opts)
        )
        return self._work(operation, [tensor], None)

    @collective
    def allgather(self, outputs: Any, inputs: Tensors, opts: Any = None) -> Work:
        """Every rank gets all ranks' inputs in the tensors of `outputs[0]`, which may differ in size."""
        source = one(inputs, "allgather", "input")
        targets = _inner(outputs, "allgather", "output_list")
        addresses, counts = parts(targets, self.group.size, source, "allgather", "output_list")
        _same_count(source.numel(), counts[self.group.rank], "allgather", "input", "output_list[rank]")
        dtype, each = movable(source)
        operation = self.group.all_gather(
            source.data_ptr(), addresses, [count * each for count in counts], dtype, self._options(opts)
        )
        return self._work(operation, list(targets), source)

    @opaque
    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Several at once: `outputs[r][i]` gets rank r's `inputs[i]`."""
        name, size = "all_gather_coalesced", self.lanes.first.size
        if len(outputs) != size:
            raise InvalidArgumentError(
                f"{name}: output_tensor_lists needs {size} lists, one per rank, not {len(outputs)}"
            )
        for rank, targets in enumerate(outputs):
            _same_count(len(targets), len(inputs), name, f"output_tensor_lists[{rank}]", "the inputs")
        columns = zip(inputs, *outputs, strict=True)
        works = [self.allgather([list(targets)], [source], opts) for source, *targets in columns]
        return self._started(works, [tensor for targets in outputs for tensor in targets])

    @collective
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Every rank gets all ranks' inputs, one behind the other."""
        name, size = "all_gather_single", self.group.size
        usable(output, name, "output")
        usable(input, name, "input")
        same_type(output, input, name, "output")
        count = input.numel()
        _same_count(output.numel(), count * size, name, "output", f"{size} inputs")
        dtype, each = movable(input)
        counts = [count * each] * size
        operation = self.group.all_gather(input.data_ptr(), output.data_ptr(), counts, dtype, self._options(opts))
        return self._work(operation, [output], input)

    _allgather_base = all_gather_single

    @opaque
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Several at once."""
        pairs = zip(outputs, inputs, strict=True)
        return self._started([self.all_gather_single(*pair, opts) for pair in pairs], list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective
    def gather(self, outputs: Any, inputs: Tensors, opts: Any = 0) -> Work:
        """The root, `opts.rootRank` (or a number), gets all inputs, of one size, in the tensors of `outputs[0]`."""
        source = one(inputs, "gather", "input")
        root = _root(opts)
        targets = _inner(outputs, "gather", "gather_list") if self.group.rank == root else []
        dtype, each = movable(source)
        counts = [source.numel() * each] * self.group.size
        addresses = [0] * self.group.size  # as scattered as the root's: ranks choose their algorithm by that
        if self.group.rank == root:
            addresses = self._equal_parts(targets, source, "gather", "gather_list")
        operation = self.group.gather(source.data_ptr(), addresses, counts, dtype, root, self._options(opts))
        return self._work(operation, list(targets), source)

    @collective
    def scatter(self, outputs: Tensors, inputs: Any, opts: Any = 0) -> Work:
        """Rank r gets `inputs[0][r]` of the root, `opts.rootRank` (or a number); all of one size."""
        target = one(outputs, "scatter", "output")
        root = _root(opts)
        sources = _inner(inputs, "scatter", "scatter_list") if self.group.rank == root else []
        dtype, each = movable(target)
        counts = [target.numel() * each] * self.group.size
        addresses = [0] * self.group.size  # as scattered as the root's: ranks choose their algorithm by that
        if self.group.rank == root:
            addresses = self._equal_parts(sources, target, "scatter", "scatter_list")
        operation = self.group.scatter(addresses, target.data_ptr(), counts, dtype, root, self._options(opts))
        return self._work(operation, [target], sources)

    def _equal_parts(self, tensors: Sequence[torch.Tensor], like: torch.Tensor, name: str, argument: str) -> list[int]:
        addresses, counts = parts(tensors, self.group.size, like, name, argument)
        for number, count in enumerate(counts):
            _same_count(count, like.numel(), name, f"{argument}[{number}]", "this rank's tensor")
        return addresses

    @collective
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        """Part d of `input` goes to rank d; part s of `output` comes from rank s. Splits count dimension 0."""
        name, size = "all_to_all_single", self.group.size
        usable(output, name, "output")
        usable(input, name, "input")
        same_type(output, input, name, "output")
        dtype, each = movable(input)
        sent: int | list[int]
        received: int | list[int]
        if not output_splits and not input_splits:
            _same_count(output.numel(), input.numel(), name, "output", "the input")
            sent = received = even_count(input, size, name, "input") * each
        else:
            sent = _split(input, input_splits, (size, each), name, "input")
            received = _split(output, output_splits, (size, each), name, "output")
        operation = self.group.all_to_all(
            input.data_ptr(), output.data_ptr(), sent, received, dtype, self._options(opts)
        )
        return self._work(operation, [output], input)

    alltoall_base = all_to_all_single

    @collective
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """`inputs[d]` goes to rank d; `outputs[s]` comes from rank s."""
        size = self.group.size
        if len(inputs) != size:
            raise InvalidArgumentError(f"alltoall: input_list needs {size} tensors, one per rank, not {len(inputs)}")
        dtype, each = movable(inputs[0])
        sources, sent = parts(inputs, size, inputs[0], "alltoall", "input_list")
        targets, received = parts(outputs, size, inputs[0], "alltoall", "output_list")
        operation = self.group.all_to_all(
            sources, targets, [count * each for count in sent], [count * each for count in received], dtype,
            self._options(opts),
        )  # fmt: skip
        return self._work(operation, list(outputs), inputs)

    @opaque
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Done when every rank has called it."""
        options = self._options(opts) if timeout is None else self.defaults.get(timeout)
        return self._work(self.group.barrier(options), [], None)


def _root(opts: Any) -> int:
    return int(opts if isinstance(opts, int) else opts.rootRank)


def _inner(lists: Any, operation: str, argument: str) -> Sequence[torch.Tensor]:
    """torch passes a list of one list of tensors; a plain list is taken too."""
    if len(lists) == 1 and isinstance(lists[0], list | tuple):
        return lists[0]
    if len(lists) > 0 and isinstance(lists[0], list | tuple):
        raise InvalidArgumentError(f"{operation}: {argument} must be one list of tensors, not {len(lists)}")
    return lists  # type: ignore[no-any-return]


def _same_count(found: int, wanted: int, operation: str, argument: str, like: str) -> None:
    if found != wanted:
        raise InvalidArgumentError(f"{operation}: {argument} has {found} elements, {like} have {wanted}")


def _split(
    tensor: torch.Tensor, splits: Sequence[int] | None, shape: tuple[int, int], operation: str, argument: str
) -> list[int]:
    size, each = shape
    if not splits:
        return [even_count(tensor, size, operation, argument) * each] * size
    return [count * each for count in split_counts(tensor, splits, size, operation, f"{argument}_split_sizes")]
