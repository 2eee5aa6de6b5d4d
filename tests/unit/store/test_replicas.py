"""On how many servers a value is: what `replicas` means, and what servers are told."""

from __future__ import annotations

from typing import Any

import pytest

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.registry import combining_by
from byteps_like.store.terms import terms_of
from byteps_like.worker.api import Places
from byteps_like.worker.keeping import KeepSpec
from byteps_like.worker.tables import TableSpec


class _Somewhere:
    """A worker of a job whose servers have copies, or don't."""

    def __init__(self, copies: bool) -> None:
        self.size = 2
        self._places = Places(1, 2, copies=copies)

    def places(self) -> Places:
        return self._places


def _replicas(copies: bool, replicas: int | None, consistency: str = "asp") -> int:
    worker: Any = _Somewhere(copies)
    return terms_of(worker, consistency, "add", combining_by("sum", None, None), replicas=replicas).replicas


def test_by_default_a_value_is_on_two_servers_where_a_job_outlives_one() -> None:
    assert _replicas(True, None) == 2
    assert _replicas(False, None) == 1
    assert _replicas(True, None, "hogwild") == 1
    assert [_replicas(True, number) for number in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("number", [0, -1, 9])
def test_numbers_that_there_can_not_be(number: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"replicas={number}"):
        _replicas(True, number)


def test_where_nobody_goes_on_with_a_copy_none_is_made() -> None:
    with pytest.raises(InvalidArgumentError, match="elastic"):
        _replicas(False, 2)
    with pytest.raises(InvalidArgumentError, match="hogwild"):
        _replicas(True, 2, "hogwild")


def test_servers_are_told_between_the_update_and_the_filters() -> None:
    spec = KeepSpec("asp", "sum:age=none,damp=none", "add", filters="zlib:level=6", replicas=3)
    assert spec.text == "policy asp\ncombine sum:age=none,damp=none\nupdate add\nreplicas 3\nfilters zlib:level=6"
    assert TableSpec("asp", "sum", "add", replicas=2).text.endswith("update add\nreplicas 2\nrows zeros")
    assert "replicas" not in KeepSpec("asp", "sum", "add").text
