"""Operations that are waited for as one: all of them, whatever one fails with."""

from __future__ import annotations

import pytest

from byteps_like.collectives.together import Together
from byteps_like.errors import DeadlineError, PeerLostError


class Part:
    """Ends when it is waited for, with `error`; or has not ended when its deadline comes."""

    def __init__(self, error=None, ends=True):
        self._error, self._ends, self._ended = error, ends, False

    def done(self):
        return self._ended

    def wait(self, timeout=None):
        self._ended = self._ends
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [PeerLostError("rank 1"), RuntimeError("CUDA error: an illegal memory access")])
def test_all_are_waited_for_and_the_first_error_is_raised(error):
    parts = [Part(), Part(error), Part(PeerLostError("later")), Part()]
    with pytest.raises(type(error)) as raised:
        Together(parts).wait()
    assert raised.value is error and all(part.done() for part in parts)


def test_a_deadline_is_no_end():
    parts = [Part(DeadlineError("1 s"), ends=False), Part()]
    with pytest.raises(DeadlineError):
        Together(parts).wait(1)
    assert not parts[0].done()
