"""Stores below another: two sites, each a job of its own, and an upper group, against a simulation in NumPy; bytes;
what is refused, and what becomes of training when the upper group is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch

import byteps_like.torch as bps
from byteps_like.errors import BytePSLikeError, ConfigError, InvalidArgumentError
from byteps_like.portable.join import join
from byteps_like.store.store import Store
from byteps_like.store.updates.registry import update_of
from byteps_like.torch.job import runtime
from byteps_like.wire.note import NOTE_BYTES
from byteps_like.worker.local import LocalWorker
from tests.contract.low_comm.local_training import backward, flat, model_of
from tests.contract.low_comm.two_sites import EVERY, PHASES, RANKS, SITES, check_values, over_exchanges, wait_for, world
from tests.contract.mixed_job import DEADLINE, native_worker

SHAPE = (40, 257)


def drawn(*seed: int, dtype: str = "float32") -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(SHAPE)
    return (values * 100 if dtype == "int64" else values).astype(dtype)


def pulled(store: Store, name: str = "w", dtype: str = "float32") -> np.ndarray:
    out = np.empty(SHAPE, dtype)
    store.pull(name, out).wait(DEADLINE)
    return out


def simulated(merge: float, update: str, dtype: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The sites' values and that of the upper group after PHASES in which sites take turns, and a last exchange."""
    outer, adds = update_of(update), update == "add"
    upper = drawn(0, dtype=dtype).astype("float64")
    state, versions = outer.fresh_state(upper), 0
    sites = [upper.copy() for _ in range(SITES)]
    lasts = [upper.copy() for _ in range(SITES)]
    for phase in range(PHASES + 1):
        for site in range(SITES):
            if phase < PHASES:
                steps = range(phase * EVERY, (phase + 1) * EVERY)
                sites[site] = sites[site] + sum(drawn(site, r, n, dtype=dtype) for r in range(RANKS) for n in steps)
                change = sites[site] - lasts[site]
                versions += 1
                upper, state = outer.apply(upper, state, change if adds else -change, step=versions)
            jump = merge * (upper - sites[site])
            sites[site] = lasts[site] = sites[site] + jump
    return sites, upper


@over_exchanges((0.5, "sgd:lr=0.3", "float32", join), (0.25, "lars:lr=0.5", "float64", native_worker))
def test_values_of_sites_meet(merge, update, dtype, kind):
    def body(site: int, worker: Any) -> Any:
        upper = here.exchanging(site, merge, update, dtype)
        first = drawn(0, dtype=dtype) if site == 0 else np.zeros(SHAPE, dtype)
        values = {"w": first, "none": np.zeros(0, dtype), "number": np.zeros((), dtype)}
        store = Store("s", values, combine="sum", upper=upper, worker=worker)
        assert np.array_equal(pulled(store, dtype=dtype), drawn(0, dtype=dtype))
        sent = upper.stats()["payload_sent"] if worker.rank == 0 else 0
        here.turn.wait()
        for phase in range(PHASES):
            with here.turn_of(site):
                for step in range(phase * EVERY, (phase + 1) * EVERY):
                    store.push("w", drawn(site, worker.rank, step, dtype=dtype)).wait(DEADLINE)
                if worker.rank == 0:
                    wait_for(lambda wanted=phase + 1: store.upper.exchanges == wanted)
        assert worker.rank or upper.stats()["payload_sent"] - sent == PHASES * (first.nbytes + NOTE_BYTES)
        with here.turn_of(site):
            store.exchange_above()
            values = pulled(store, dtype=dtype)
        above = None
        if worker.rank == 0:
            above = np.empty(SHAPE, dtype)
            store.upper.store.pull("w", above).wait()
        store.finish()
        return values, above, store.upper.error

    with world(kind, partition_bytes=4096) as here:
        found = here.everybody(body)
    check_values(found, *simulated(merge, update, dtype), dtype)


def test_training_goes_on_without_the_upper_group():
    """It fails in the middle: that is logged, values of the site go on by themselves, and at the end it is raised on
    all ranks."""

    def body(site: int, worker: Any) -> Any:
        store = Store("s", {"w": np.zeros(SHAPE, np.float32)}, combine="sum", upper=here.upper(site), worker=worker)
        for _ in range(EVERY):
            store.push("w", np.ones(SHAPE, np.float32)).wait(DEADLINE)
        if worker.rank == 0:
            wait_for(lambda: store.upper.exchanges == 1)
        here.turn.wait()
        if site == worker.rank == 0:
            here.above.scheduler.stop()
            for server in here.above.servers:
                server.native.stop()
        here.turn.wait()
        before = pulled(store)
        for _ in range(2 * EVERY):
            store.push("w", np.ones(SHAPE, np.float32)).wait(DEADLINE)
        if worker.rank == 0:
            wait_for(lambda: store.upper.error is not None)
            assert "has lost the upper group" in str(store.upper.error)
        for _ in range(EVERY):
            store.push("w", np.ones(SHAPE, np.float32)).wait(DEADLINE)
        np.testing.assert_allclose(pulled(store), before + 3 * EVERY * RANKS)
        with pytest.raises(BytePSLikeError, match="has lost the upper group") as found:
            store.finish()
        return type(found.value)

    with world() as here:
        for kinds in here.everybody(body):
            assert kinds[0] is kinds[1] and issubclass(kinds[0], BytePSLikeError)


def test_what_is_restored_is_no_change_for_the_upper_group(tmp_path):
    ones = np.ones(SHAPE, np.float32)

    def body(site: int, worker: Any) -> None:
        store = Store("s", {"w": 0 * ones}, combine="sum", upper=here.upper(site, merge=0.0), worker=worker)

        def push(count: int) -> None:
            for _ in range(count):
                store.push("w", ones).wait(DEADLINE)

        push(1)
        store.checkpoint(tmp_path / str(site))
        push(1)
        store.restore(tmp_path / str(site))
        push(2)
        store.exchange_above()
        np.testing.assert_array_equal(pulled(store), 3 * RANKS * ones)
        here.turn.wait()
        if worker.rank == 0:
            above = np.empty(SHAPE, np.float32)
            store.upper.store.pull("w", above).wait()
            np.testing.assert_array_equal(above, SITES * 2 * RANKS * ones)
        here.turn.wait()
        store.finish()

    with world() as here:
        here.everybody(body)


@pytest.mark.parametrize("codec", ["", "int8"])
def test_low_comm_has_an_upper_group(codec):
    """Both sites take all of it at the end: their weights are then the upper group's, and those of all ranks."""

    def body(site: int, worker: Any) -> Any:
        with runtime.bound(worker):
            torch.set_num_threads(1)
            model = model_of(seed=2 * site + worker.rank)
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            with bps.LowComm(
                model,
                inner,
                every=2,
                fragments=2,
                outer=bps.AveragedWeights(),
                codec=codec,
                upper=here.upper(site, merge=1.0, every=1),
            ) as low:
                begun = flat(model)
                for step in range(6):
                    inner.zero_grad()
                    backward(model, 2 * site + worker.rank, step)
                    inner.step()
                here.turn.wait()
            here.turn.wait()
            with low:
                pass
            return begun, flat(model)

    with world() as here:
        found = [rank for site in here.everybody(body) for rank in site]
    for begun, end in found:
        assert torch.equal(begun, flat(model_of(0)))
        assert not torch.equal(end, begun)
        torch.testing.assert_close(end, found[0][1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"every": 0}, InvalidArgumentError, "every=0"),
        ({"every": 1.5}, InvalidArgumentError, "every=1.5"),
        ({"merge": -0.1}, InvalidArgumentError, "merge=-0.1"),
        ({"merge": 1.1}, InvalidArgumentError, "from 0 to 1"),
        ({"sites": 0}, InvalidArgumentError, "sites=0"),
        ({"update": "assign"}, InvalidArgumentError, "update=assign"),
        ({"consistency": "hogwild"}, InvalidArgumentError, "hogwild"),
        ({"consistency": "k_of_n:k=3"}, InvalidArgumentError, "k"),
        ({"site": 2}, ConfigError, "rank=2"),
        ({"hours": 2}, ConfigError, "unknown setting 'hours'"),
    ],
)
def test_wrong_terms(given, error, words):
    with pytest.raises(error, match=words):
        bps.Upper("localhost:1", **{"sites": 2, "every": 1, "merge": 0.5, "secret": "s", **given})


def test_stores_that_can_not_be_below():
    upper = bps.Upper("localhost:1", sites=2, every=1, merge=0.5, secret="s")
    with runtime.bound(LocalWorker()):
        for terms, words in (({}, "needs servers"), ({"consistency": "hogwild"}, "no servers"),
                             ({"update": "none"}, "no values"), ({"combine": "sum"}, "integers")):  # fmt: skip
            dtype = np.int64 if "combine" in terms else np.float32
            with pytest.raises(InvalidArgumentError, match=words):
                Store("s", {"w": np.zeros(3, dtype)}, upper=upper, **terms)
        sgd_above = bps.Upper("localhost:1", sites=2, every=1, merge=1.0, secret="s", update="sgd", combine="sum")
        with pytest.raises(InvalidArgumentError, match="sgd takes no int64"):
            Store("s", {"w": np.zeros(3, np.int64)}, upper=sgd_above, combine="sum")
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(InvalidArgumentError, match="upper needs servers"), bps.LowComm(model, inner, upper=upper):
            pass


def test_optimizers_share_an_upper_group():
    """Each has two stores, one for each update; what sites have learned adds up above."""

    def body(site: int, worker: Any) -> Any:
        with runtime.bound(worker):
            torch.set_num_threads(1)
            model = model_of(seed=2 * site + worker.rank)
            plain = torch.optim.SGD([
                {"params": list(model[0].parameters()), "momentum": 0.9}, {"params": list(model[2].parameters())}
            ], lr=0.1)  # fmt: skip
            optimizer = bps.DistributedOptimizer(
                plain, model.named_parameters(), consistency="asp", upper=here.upper(site, merge=1.0)
            )
            for step in range(2 * EVERY):
                optimizer.zero_grad()
                backward(model, 2 * site + worker.rank, step)
                optimizer.step()
            optimizer.finish()
            here.turn.wait()
            optimizer.finish()
            return flat(model)

    with world() as here:
        found = [weights for site in here.everybody(body) for weights in site]
    assert not torch.equal(found[0], flat(model_of(0)))
    for weights in found:
        torch.testing.assert_close(weights, found[0], rtol=0, atol=1e-6)
