"""Programs and plans across the binding: what Python passes wrongly is an InvalidArgumentError that names the step."""

from __future__ import annotations

import pytest

from byteps_like import _core
from byteps_like.errors import InvalidArgumentError

SEND, RECEIVE, RECEIVE_REDUCE, COPY = range(4)
INPUT, OUTPUT, SCRATCH = range(3)
NONE = (-1, 0, 0)


def _step(kind, peer=-1, tag=0, source=NONE, target=NONE, final=False):
    return (kind, peer, tag, *source, *target, final)


EXCHANGE = [
    _step(SEND, 1, 0, source=(INPUT, 0, 1)),
    _step(RECEIVE, 1, 0, target=(OUTPUT, 0, 1)),
    _step(COPY, source=(OUTPUT, 0, 1), target=(SCRATCH, 0, 1)),
]


def _program(steps, alias=-1, rank=0, size=2):
    return _core.Program(rank, size, 1, 1, 1, steps, alias)


def test_steps_and_their_dependencies():
    """A copy waits for the receive of what it reads; in place, so does the receive for the send."""
    assert _program(EXCHANGE).steps == 3
    assert _program(EXCHANGE).dependencies == [[], [], [1]]
    assert _program(EXCHANGE, alias=0).dependencies == [[], [0], [1]]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([_step(7)], "step 0: there is no such kind"),
        ([_step(-1)], "there is no such kind"),
        ([_step(SEND, 2, source=(INPUT, 0, 1))], "no peer 2"),
        ([_step(SEND, -1, source=(INPUT, 0, 1))], "no peer"),
        ([*EXCHANGE, _step(SEND, 1, 1)], "step 3: source: chunks"),
        ([_step(COPY, source=(INPUT, 0, 1), target=(5, 0, 1))], "no such buffer"),
        ([*EXCHANGE, EXCHANGE[0]], "two sends to rank 1 have tag 0"),
    ],
)
def test_wrong_steps_are_named(steps, text):
    """No code from Python reaches the core unchecked."""
    with pytest.raises(InvalidArgumentError, match=text):
        _program(steps)


@pytest.mark.parametrize("alias", [1, 2**40])
def test_wrong_alias(alias):
    """The input must lie in the output."""
    with pytest.raises(InvalidArgumentError, match="alias"):
        _program(EXCHANGE, alias=alias)


def test_plan_checks_sizes():
    """Tables of the program's size, lengths that agree; scratch is what its chunks reach to."""
    program = _program(EXCHANGE)
    plan = _core.Plan(program, [4, 7], [(0, 10)], [(-100, 10)], [(6, 10)])
    assert plan.scratch_bytes == 16
    with pytest.raises(InvalidArgumentError, match="input has 0 chunks"):
        _core.Plan(program, [4, 7], [], [(0, 10)], [(0, 10)])
    with pytest.raises(InvalidArgumentError, match="step 2: the source has 10 bytes, the target 9"):
        _core.Plan(program, [4, 7], [(0, 10)], [(0, 10)], [(0, 9)])
    with pytest.raises(InvalidArgumentError, match="1 ranks for a program of 2"):
        _core.Plan(program, [4], [(0, 10)], [(0, 10)], [(0, 10)])
