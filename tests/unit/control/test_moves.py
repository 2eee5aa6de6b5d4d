"""All ranks move a tensor between the same two rounds, whenever each of them hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.types import Move
from byteps_like.dtypes import DType
from byteps_like.worker.api import Declared, Partition, TensorSpec
from byteps_like.worker.engine.moves import Moves

SPEC = TensorSpec("w", DType.FLOAT32, (4,))
FIRST = Declared(SPEC, 0, (Partition(0, 0, 16, 0, 0),))
MOVES = [Move(0, number, (Partition(number << 16, 0, 16, number, 0),)) for number in (1, 2, 3)]


@dataclass
class Pushed:
    """A round that is over."""

    moves: bool


@given(st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3).map(sorted), min_size=1, max_size=4))
def test_ranks_move_in_step(heard_at: list[list[int]]) -> None:
    """`heard_at[rank][i]`: before which round a rank hears of move i."""
    ranks = [Moves() for _ in heard_at]
    history = []
    for number in range(20):
        places, movable = [], []
        for moves, times in zip(ranks, heard_at, strict=True):
            moves.hear(move for move, at in zip(MOVES, times, strict=True) if at == number)
            now, _ = moves.settle(FIRST, follows=True)
            places.append(now)
            movable.append(moves.begin(now))
        for moves, now in zip(ranks, places, strict=True):
            moves.began(now, Pushed(all(movable)))
        assert len({place.tensor_id for place in places}) == 1
        history.append(places[0].tensor_id)
    assert history[-1] == 3 and history == sorted(history)
    for wanted in (1, 2, 3):  # one round after all have heard, or when the move before is over
        assert history.index(wanted) >= max(times[wanted - 1] for times in heard_at) + 1


def test_who_does_not_ask_stays() -> None:
    moves = Moves()
    moves.hear(MOVES)
    assert not moves.begin(FIRST)
    moves.began(FIRST, Pushed(False))
    assert moves.settle(FIRST, follows=False) == (FIRST, None)
    assert not moves.begin(FIRST)
    moves.began(FIRST, Pushed(False))
    assert moves.settle(FIRST, follows=True) == (FIRST, None)
    assert moves.begin(FIRST)
    moves.began(FIRST, Pushed(True))
    now, left = moves.settle(FIRST, follows=True)
    assert (now.tensor_id, left) == (1, FIRST)
    assert moves.settle(now, follows=True) == (now, None)
