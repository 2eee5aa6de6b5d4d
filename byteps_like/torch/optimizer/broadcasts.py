"""Handing the root's model and optimizer state to all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.process_sets import ProcessSet
from byteps_like.torch.job.trees import flatten, unflatten
from byteps_like.torch.ops.objects import allgather_bytes, broadcast_bytes
from byteps_like.torch.ops.packed import broadcast_packed
from byteps_like.torch.reduction.feedback_state import without_residuals

Parameters = Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]] | Iterable[torch.Tensor]


def broadcast_parameters(
    params: Parameters,
    root_rank: int = 0,
    prefix: object = "Parameter.",
    process_set: object = None,
) -> None:
    """Overwrites tensors with those of rank `root_rank`, in place. Blocks.

    `params` is a `state_dict()` (buffers included), `named_parameters()`, or a list of pairs or tensors. Other values,
    such as a module's extra state, are left alone. `prefix` is BytePS's and ignored, but Horovod's third argument is
    `process_set`.

    Names, shapes, dtypes and the root are compared over the ranks first. Raises MismatchError on every rank if they
    differ; it names the rank that differs from the root or from the others, and where. On the wire: the tensors' bytes
    up from the root and down to the others.
    """
    process_set = prefix if isinstance(prefix, ProcessSet) else process_set
    if tensors := agreed_tensors(params, root_rank, process_set):
        broadcast_packed(_runtime.current(), tensors, root_rank, process_set)


def agreed_tensors(params: Parameters, root_rank: int, process_set: object = None) -> list[torch.Tensor]:
    """Those to be overwritten, once all ranks are known to have them and the updates of this one are made. Blocks.

    None in a world of one. Raises as `broadcast_parameters`.
    """
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    scope.root(root_rank)
    runtime.finish_updates()
    items = named_tensors(params)
    if scope.size == 1:
        return []
    check_catalogue(items, root_rank, process_set)
    return [tensor for _, tensor in items]


def named_tensors(params: Parameters) -> list[tuple[str, torch.Tensor]]:
    """`params` as pairs. Raises InvalidArgumentError for what is neither a mapping nor pairs nor tensors."""
    if isinstance(params, Mapping):
        return [(str(name), value) for name, value in params.items() if isinstance(value, torch.Tensor)]
    if not isinstance(params, Iterable):
        raise InvalidArgumentError(
            f"broadcast_parameters takes a state_dict() or named_parameters(), not {type(params).__name__}"
        )
    items: list[tuple[str, torch.Tensor]] = []
    for number, item in enumerate(params):
        name, value = item if isinstance(item, tuple) and len(item) == 2 else (str(number), item)
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(f"broadcast_parameters can't take {name!r}: a {type(value).__name__}")
        items.append((str(name), value))
    return items


def check_catalogue(items: list[tuple[str, torch.Tensor]], root: int, process_set: object = None) -> None:
    """Raises MismatchError on every rank if names, shapes or dtypes differ from the root's on any of them."""
    own = [f"{name} {_described(value)}" for name, value in items]
    what = "broadcast_parameters"
    expected = json.loads(broadcast_bytes(json.dumps(own).encode(), root, process_set=process_set, what=what))
    differences = allgather_bytes(_difference(own, expected).encode(), process_set=process_set, what=what)
    reports = [report.decode() for report in differences if report]
    if reports:
        raise MismatchError("broadcast_parameters: " + "; ".join(reports), rank=_runtime.rank())


def _described(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _difference(own: list[str], expected: list[str]) -> str:
    if own == expected:
        return ""
    rank = _runtime.rank()
    if len(own) != len(expected):
        return f"rank {rank} has {len(own)} tensors where the root has {len(expected)}"
    mine, theirs = next(pair for pair in zip(own, expected, strict=True) if pair[0] != pair[1])
    return f"rank {rank} has '{mine}' where the root has '{theirs}'"


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    prefix: object = "Parameter.",
    process_set: object = None,
    *,
    model: torch.nn.Module | None = None,
) -> None:
    """Copies the state and hyper-parameters of rank `root_rank`'s optimizer to all ranks. Blocks.

    It works for any optimizer whose `load_state_dict` accepts its own `state_dict()`, including LBFGS, on any device,
    whether or not the ranks have made a step yet. Tensors are sent as they are, and everything else as authenticated
    JSON; only objects that are neither containers, numbers nor strings are pickled.

    If this rank's optimizer has no state yet, parameters without a gradient get one of zeros, as scripts for Horovod
    expect. `model` is Horovod's: gradients of its sparse embeddings are sparse, as are all of SparseAdam's. `prefix` is
    BytePS's and ignored, but Horovod's third argument is `model`.

    Raises MismatchError if the ranks name different roots.
    """
    model = prefix if isinstance(prefix, torch.nn.Module) else model
    if not prepare_optimizer(optimizer, root_rank, process_set, model=model):
        return
    runtime = _runtime.current()
    state, tensors = announced(without_residuals(optimizer.state_dict()), root_rank, process_set)
    broadcast_packed(runtime, tensors, root_rank, process_set)
    if runtime.worker.rank != root_rank:
        optimizer.load_state_dict(state)


def prepare_optimizer(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    process_set: object = None,
    *,
    model: torch.nn.Module | None = None,
) -> bool:
    """Makes updates that are under way, and gradients of zeros where there is no state yet. Blocks.

    Returns whether there are other ranks, with which its state can be shared.
    """
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    scope.root(root_rank)
    runtime.finish_updates()
    if not optimizer.state:
        _zero_missing_gradients(optimizer, model)
    return scope.size > 1


def _zero_missing_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    layers = () if model is None else model.modules()
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    sparse = {id(layer.weight) for layer in layers if isinstance(layer, embeddings) and layer.sparse}
    for parameter in (item for group in optimizer.param_groups for item in group["params"]):
        if parameter.requires_grad and parameter.grad is None:
            zeros = torch.zeros_like(parameter, requires_grad=False)
            by_rows = isinstance(optimizer, torch.optim.SparseAdam) or id(parameter) in sparse
            parameter.grad = zeros.to_sparse(1) if by_rows else zeros


def announced(tree: Any, root: int, process_set: object = None) -> tuple[Any, list[torch.Tensor]]:
    """The root's nest of containers, tensors and other values, on all ranks, and the tensors in it. Blocks.

    On the root they are those of `tree`; on the others they are on the CPU, and have yet to be filled.
    """
    is_root = _runtime.current().worker.rank == root
    text, tensors = flatten(tree) if is_root else (b"", [])
    text = broadcast_bytes(text, root, process_set=process_set, what="broadcast_optimizer_state")
    return (tree, tensors) if is_root else unflatten(text)
