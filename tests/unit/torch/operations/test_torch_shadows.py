"""What a joined rank takes part in: once in each reduction that it hears of, in none that it had its part in before."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, MismatchError
from byteps_like.torch.job.naming import Among, Call, Claim, NameTable
from byteps_like.torch.job.shadows import Message, Shadows, meeting_of
from byteps_like.worker.api import Declared, Partition, TensorSpec


class Flight:
    """An operation that ends when it is told to."""

    def __init__(self, over: bool = False) -> None:
        self.over = over
        self.error: BytePSLikeError | None = None

    def end(self, error: BytePSLikeError) -> None:
        """With `error`."""
        self.over, self.error = True, error

    def done(self) -> bool:
        return self.over

    def wait(self, timeout: float | None = None) -> None:
        """Returns, or raises, at once."""
        if self.error is not None:
            raise self.error


class Route:
    """What is declared and in flight by it."""

    def __init__(self) -> None:
        self.worker = SimpleNamespace(placed=lambda declared, follows: declared)
        self.declared: dict[str, Declared] = {}
        self.launched: list[tuple[str, Flight]] = []

    def declare(self, specs: list[TensorSpec]) -> list[Declared]:
        parts = (Partition(0, 0, specs[0].nbytes, 0, 0),)
        return [self.declared.setdefault(specs[0].name, Declared(specs[0], 0, parts))]

    def launch(self, declared: Declared, *_: Any) -> Flight:
        self.launched.append((declared.spec.name, Flight()))
        return self.launched[-1][1]

    def retire(self, name: str) -> None:
        self.declared.pop(name, None)


class Rank:
    """One that has joined, and the table of another, which tells it of what it does."""

    def __init__(self) -> None:
        self.names, self.other = NameTable(), NameTable()
        self.route = Route()
        self.shadows = Shadows([self.route], defaultdict(Counter), self.names)  # type: ignore[list-item]

    def hear(self, name: str) -> bool:
        """The other rank begins an operation, and says so."""
        claim = begin(self.other, name)
        self.other.begun(claim, Flight(over=True))
        self.other.release(claim)
        return self.shadows.start(notice(claim))

    @property
    def launched(self) -> list[str]:
        return [name.rpartition("@")[2] for name, _ in self.route.launched]


def begin(names: NameTable, name: str) -> Claim:
    return names.claim(Among(), Call("push_pull", name, "x"), lambda _: None)


def notice(claim: Claim, use: int = 0) -> Message:
    return {
        "route": 0, "name": claim.name, "dtype": int(DType.FLOAT32), "shape": (4,), "codec": "", "says_all": True,
        "op": int(Op.SUM), "root": 0, "parts": [0, 1], "from": 1, "use": use, **meeting_of(claim),
    }  # fmt: skip


def test_what_this_rank_had_its_part_in_is_not_begun_again_though_it_has_let_go_of_the_name() -> None:
    rank = Rank()
    claim = begin(rank.names, "loss")
    rank.names.begun(claim, Flight(over=True))
    rank.names.release(claim)
    assert not rank.names._points
    assert rank.hear("loss")
    assert not rank.route.launched and not rank.route.declared
    assert rank.hear("loss")  # the second use, which it had no part in
    assert rank.launched == ["1"]


def test_what_several_ranks_tell_of_is_begun_once_also_when_it_is_over() -> None:
    rank = Rank()
    claim = begin(rank.other, "loss")
    rank.shadows.start(notice(claim))
    rank.shadows.start(notice(claim))
    rank.route.launched[0][1].over = True
    rank.shadows.start(notice(claim))
    assert rank.launched == ["0"]
    assert not rank.route.declared and not rank.shadows._buffers and not rank.shadows._newest


def test_names_that_are_used_while_this_rank_has_joined_are_let_go_of_at_the_end() -> None:
    rank = Rank()
    for name in ("once", "twice", "twice"):
        rank.hear(name)
    assert len(rank.route.declared) == 3
    rank.shadows.finish()
    assert [name.rpartition("@")[2] for name in rank.shadows.let_go()] == ["1"]
    assert not rank.route.declared


def test_what_the_others_disagree_on_may_fail_before_they_have_said_so() -> None:
    rank = Rank()
    rank.hear("loss")
    rank.route.launched[0][1].end(MismatchError("the ranks disagree"))
    assert rank.hear("weight")
    assert not rank.shadows._passing.keys() & {(0, rank.route.launched[0][0])}
    assert rank.shadows.finish() == []
    assert not rank.route.declared.keys() & {rank.route.launched[0][0]}


def test_so_may_what_is_used_more_than_once() -> None:
    rank = Rank()
    rank.hear("loss")
    for use in range(2):  # the second time they had not heard either
        claim = begin(rank.other, "loss")
        rank.other.begun(claim, Flight(over=True))
        rank.other.release(claim)
        assert rank.shadows.start(notice(claim, use))
        rank.route.launched[-1][1].end(MismatchError("the ranks disagree"))
    assert rank.launched == ["0", "1"]
    assert rank.shadows.finish() == []
