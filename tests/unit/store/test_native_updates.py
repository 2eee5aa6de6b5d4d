"""The native updates give the bits of their references, whatever the instruction set, size and values."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.updates.registry import OURS, update_of
from byteps_like.store.updates.update import is_finite

core = pytest.importorskip("byteps_like._core")
kernels, updates = core.kernels, core.updates

BEST = kernels.instruction_set()
SETS = [name for name in ("avx512", "avx2", "neon", "scalar") if kernels.select_instruction_set(name)]
kernels.select_instruction_set(BEST)
ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "how-to" / "add-an-update.md"
Array = np.ndarray[Any, Any]

TEXTS = [kind.name for kind in OURS] + [
    "sgd:lr=0.1,weight_decay=0.3",
    "momentum:lr=0.1,momentum=0.5,weight_decay=0.3",
    "nesterov:lr=0.1,momentum=0.5,weight_decay=0.3",
    "adagrad:lr=0.1,lr_decay=0.2,weight_decay=0.3,initial=0.4,eps=0.001",
    "row_adagrad:eps=0",
    "adam:beta1=0.4,beta2=0,eps=0,weight_decay=0.3",
    "adamw:lr=0.1,beta1=0,weight_decay=0",
    "lars:lr=0.5,momentum=0.8,weight_decay=0.05,trust=0.01",
    "lamb:lr=0.01,eps=0,weight_decay=0",
]


@pytest.fixture(params=SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    assert kernels.select_instruction_set(request.param)
    yield
    kernels.select_instruction_set(BEST)


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros of both signs, denormals, and numbers so small and so large that squares under- and overflow."""
    if dtype == np.int64:
        return random.integers(-(2**63), 2**63 - 1, shape)
    info = np.finfo(dtype)
    special = np.array([0.0, -0.0, info.smallest_subnormal, -info.tiny / 3, info.tiny, info.max, -info.max / 2, 1])
    usual = random.normal(size=shape)
    return np.where(random.random(shape) < 0.2, random.choice(special, shape), usual).astype(dtype)


def assert_same_bits(found: Array, expected: Array, what: str) -> None:
    """But for which NaN it is."""
    nan = found != found
    np.testing.assert_array_equal(nan, expected != expected, err_msg=what)
    bits = f"u{found.itemsize}"
    np.testing.assert_array_equal(np.where(nan, 0, found.view(bits)), np.where(nan, 0, expected.view(bits)), what)


SHAPES = st.one_of(
    st.tuples(st.integers(0, 300)),
    st.tuples(st.integers(0, 9), st.integers(0, 40)),
    st.just((1500,)),
    st.just((3, 1029)),
)


@settings(max_examples=25, deadline=None)
@given(
    shape=SHAPES,
    dtype=st.sampled_from([np.float32, np.float64, np.int64]),
    seed=st.integers(0, 2**32),
    offset=st.integers(0, 3),
    lr=st.sampled_from([None, 0.0, 0.37]),
    first=st.sampled_from([1, 2, 1000, 2**31]),
)
@pytest.mark.parametrize("text", TEXTS)
def test_native_updates_give_the_bits_of_the_reference(
    text: str, shape: tuple[int, ...], dtype: Any, seed: int, offset: int, lr: float | None, first: int
) -> None:
    reference = update_of(text)
    if dtype == np.int64 and not reference.takes_integers:
        return
    native, random = core.Update(reference.spec()), np.random.default_rng(seed)
    value = drawn(random, shape, dtype)
    state = reference.fresh_state(value)
    room = np.full(value.size + 8, 77, dtype)
    native_value = room[offset : offset + value.size].reshape(shape)
    native_value[...] = value
    native_state = np.full_like(state, 99)
    native.begin(native_value, native_state)
    assert_same_bits(native_state, state, "state before the first update")
    for step in range(first, first + 3):
        gradient = drawn(random, shape, dtype)
        value, state = reference.apply(value, state, gradient, lr, step)
        native.apply(native_value, native_state, gradient, lr, step)
        assert_same_bits(native_value, value, f"value after step {step}")
        assert_same_bits(native_state, state, f"state after step {step}")
    assert (room[:offset] == 77).all() and (room[offset + value.size :] == 77).all()


def test_every_update_of_ours_has_a_native_twin_that_says_the_same() -> None:
    assert updates.names() == [*(kind.name for kind in OURS), "function"]
    for kind in OURS:
        reference, native = kind(), core.Update(kind().spec())
        assert (native.whole, native.lr) == (kind.whole, reference.rate(None))
        assert native.state_count(4, 6) == np.prod(reference.state_shape((4, 6)))
        taken = {dtype for dtype in DType if native.takes(dtype)}
        assert taken == {DType.FLOAT32, DType.FLOAT64} | ({DType.INT64} if kind.takes_integers else set())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adams", "there is no update adams; there are none, assign, add, sgd, momentum, nesterov, .*, lamb"),
        ("sgd:lr=0.1", "update sgd:lr=0.1: weight_decay is missing"),
        ("sgd:lr=-1,weight_decay=0", "update sgd:.*: lr=-1 must be a finite number of at least 0"),
        ("sgd:lr=inf,weight_decay=0", "lr=inf must be a finite number of at least 0"),
        ("sgd:lr=nan,weight_decay=0", "lr=nan must be a finite number of at least 0"),
        ("sgd:lr=1x,weight_decay=0", "lr=1x must be a finite number of at least 0"),
        ("momentum:lr=1,momentum=1,weight_decay=0", "momentum=1 must be a number of at least 0 and below 1"),
        ("momentum:lr=1,momentum=nan,weight_decay=0", "momentum=nan must be a number of at least 0 and below 1"),
        ("add:lr=1", "update add:lr=1: there is no lr"),
    ],
)
def test_a_bad_text_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        core.Update(spec)


@pytest.mark.processes
def test_the_native_example_of_the_guide_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    (code,) = re.findall(r"```cpp\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    source = tmp_path / "signum.cc"
    source.write_text(code, encoding="utf-8")
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", "-c", source, "-o", tmp_path / "o"]
    subprocess.run(command, check=True, timeout=100)


@settings(max_examples=50, deadline=None)
@given(
    size=st.one_of(st.integers(0, 70), st.sampled_from([4095, 4096, 4097, 12_289])),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32),
    spoil=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
def test_what_is_not_finite_is_found(size: int, dtype: Any, seed: int, spoil: float | None) -> None:
    random = np.random.default_rng(seed)
    gradient = drawn(random, (size,), dtype)
    if spoil is not None and size:
        gradient[random.integers(size)] = spoil
    assert updates.is_finite(gradient) == is_finite(gradient) == (spoil is None or not size)
