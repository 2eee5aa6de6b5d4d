"""Objects between ranks: nothing is unpickled that a rank has not sealed for this call, and most needs no pickle."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from typing import Any

import cloudpickle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.torch.job import sealed
from byteps_like.torch.job.sealed import MAC_BYTES, Seal
from byteps_like.torch.job.trees import flatten, unflatten
from byteps_like.torch.ops import objects
from tests.fakes.thread_world import run_world

KEY = bytes(range(32))
SEAL = Seal(KEY, "broadcast_object", 0, 1)


def test_what_is_opened_was_sealed_by_that_rank_for_that_call() -> None:
    closed = SEAL.close(3, b"data")
    assert SEAL.open(3, closed) == b"data"
    others = [
        (Seal(bytes(32), SEAL.kind, 0, 1), 3),
        (Seal(KEY, "allgather_object", 0, 1), 3),
        (Seal(KEY, SEAL.kind, 1, 1), 3),
        (Seal(KEY, SEAL.kind, 0, 2), 3),
        (SEAL, 2),
    ]
    for seal, sender in others:
        with pytest.raises(CorruptError, match=f"what came from rank {sender} is not what it has sent"):
            seal.open(sender, closed)
    for place in range(len(closed)):
        changed = bytearray(closed)
        changed[place] ^= 1
        with pytest.raises(CorruptError):
            SEAL.open(3, bytes(changed))
    for cut in (b"", closed[:MAC_BYTES], closed[:-1], closed + b"x"):
        with pytest.raises(CorruptError):
            SEAL.open(3, cut)
    with pytest.raises(InvalidArgumentError, match="no key"):
        Seal(b"", SEAL.kind, 0, 1).close(0, b"")


@pytest.mark.parametrize("call", ["broadcast", "allgather"])
def test_an_object_that_was_changed_on_its_way_is_not_unpickled(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unpickled = []
    genuine = objects.broadcast_packed

    def somebody_on_the_way(runtime: Any, tensors: Any, root: int, process_set: object = None) -> None:
        genuine(runtime, tensors, root, process_set)
        if runtime.worker.rank != root:
            tensors[0][-2] ^= 1

    monkeypatch.setattr(objects, "broadcast_packed", somebody_on_the_way)
    monkeypatch.setattr(cloudpickle, "loads", unpickled.append)

    def body(bps: Any, rank: int, size: int) -> None:
        with pytest.raises(CorruptError, match="changed on their way"):
            bps.broadcast_object({"a": rank}, 0) if call == "broadcast" else bps.allgather_object(rank)
            if rank == 0:
                raise CorruptError("the root has its own: changed on their way")

    run_world(2, body)
    assert unpickled == []


def test_common_optimizers_and_parameters_need_no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("pickled")

    for name in ("dumps", "loads"):
        monkeypatch.setattr(cloudpickle, name, refuse)
        monkeypatch.setattr(pickle, name, refuse)

    def body(bps: Any, rank: int, size: int) -> None:
        makers = [
            lambda p: torch.optim.SGD(p, 0.1 + rank, momentum=0.9),
            lambda p: torch.optim.Adam(p, 0.1 + rank, betas=(0.8, 0.9), amsgrad=True),
            lambda p: torch.optim.AdamW(p, torch.tensor(0.1 + rank), capturable=False, foreach=False),
            lambda p: torch.optim.LBFGS(p, 0.1 + rank, history_size=3),
            lambda p: torch.optim.Adagrad(p, 0.1 + rank),
        ]
        for make in makers:
            torch.manual_seed(rank)
            model = torch.nn.Linear(3, 2)
            optimizer = make(model.parameters())
            if rank == 0:
                for _ in range(2):
                    optimizer.zero_grad()
                    loss = model(torch.ones(1, 3)).sum()
                    loss.backward()
                    optimizer.step(lambda loss=loss: loss)
            bps.broadcast_parameters(model.state_dict(), 0)
            bps.broadcast_optimizer_state(optimizer, 0)
            group = optimizer.param_groups[0]
            assert float(group["lr"]) == pytest.approx(0.1)
            assert "betas" not in group or type(group["betas"]) is tuple

    run_world(2, body)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text()) | st.booleans() | st.none()
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


@given(TREES)
def test_any_plain_tree_comes_back_as_it_was(tree: Any) -> None:
    text, tensors = flatten(tree)
    back, none = unflatten(text)
    assert back == tree and json.dumps(str(back)) == json.dumps(str(tree))
    assert tensors == none == []


def test_tensors_are_apart_and_other_objects_are_pickled() -> None:
    first, second = torch.ones(2, 3), torch.tensor(7, dtype=torch.int64)
    tree = {"state": {0: {"a": first, "b": None}}, "x": [second, (1, OrderedDict(a=1)), torch.float16]}
    text, tensors = flatten(tree)
    assert tensors[0] is first and tensors[1] is second
    back, empty = unflatten(text)
    assert [(each.shape, each.dtype) for each in empty] == [(each.shape, each.dtype) for each in tensors]
    assert back["state"][0]["a"] is empty[0] and back["x"][0] is empty[1]
    assert back["x"][1] == (1, OrderedDict(a=1)) and back["x"][2] is torch.float16
    assert text.count(b'"pickle"') == 2
    assert sealed.MAC_BYTES == 32
