"""What a route keeps of the names that were declared on it, and lets go of."""

from __future__ import annotations

import random

from byteps_like.dtypes import DType
from byteps_like.torch.job.routes import Route
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.local import LocalWorker

WORDS = ("a", "b", "a b", "aa", ".", "a.", "a/", "a\0", "ä", "")


class Looked(str):
    """A name that counts how often any of its kind is looked at."""

    times = 0

    def startswith(self, *given: object) -> bool:  # type: ignore[override]
        Looked.times += 1
        return str(self).startswith(*given)  # type: ignore[arg-type]

    def __lt__(self, other: str) -> bool:
        Looked.times += 1
        return str(self) < other

    def __gt__(self, other: str) -> bool:
        Looked.times += 1
        return str(self) > other


def declare(route: Route, *names: str) -> None:
    route.declare([TensorSpec(name, DType.FLOAT32, (1,)) for name in names])


def test_retiring_takes_a_name_and_its_parts() -> None:
    draw = random.Random(7)
    route, held = Route(LocalWorker()), set[str]()
    for _ in range(3000):
        name = ".".join(draw.choices(WORDS, k=draw.randint(1, 3)))
        if draw.random() < 0.8:
            declare(route, name)
            held.add(name)
        else:
            gone = {one for one in held if one == name or one.startswith(f"{name}.")}
            assert sorted(route.retire(name)) == sorted(gone)
            held -= gone
        assert set(route.names) == held


def test_retiring_leaves_the_worker_nothing() -> None:
    worker = LocalWorker()
    route = Route(worker)
    declare(route, "a", "a.body", "ab")
    assert sorted(route.retire("a")) == ["a", "a.body"]
    assert route.retire("a") == []
    assert list(worker._catalogue._known) == ["ab"]


def test_retiring_one_of_many_names_looks_at_few() -> None:
    route = Route(LocalWorker())
    declare(route, *(Looked(f"layer.{number}") for number in range(4096)))
    Looked.times = 0
    assert route.retire("layer.2000") == ["layer.2000"]
    assert Looked.times <= 4 * 14  # the ends of two ranges, by halving
