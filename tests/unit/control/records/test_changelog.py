"""How records are laid out as a log: any commits, of any size, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.control.records.etcd import changelog
from byteps_like.control.records.etcd.changelog import Changelog, Head
from byteps_like.control.v1 import records_pb2 as pb
from byteps_like.errors import CorruptError, RefusedError

CHANGES = st.dictionaries(st.sampled_from("abcdef"), st.none() | st.binary(max_size=60), max_size=6)


@settings(max_examples=200, deadline=None)
@given(commits=st.lists(CHANGES, max_size=30), piece=st.integers(1, 80))
def test_what_counts_is_what_was_committed(commits: list[dict[str, bytes | None]], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog, "PIECE", piece)
        patch.setattr(changelog, "_SLACK_BYTES", 100)
        patch.setattr(changelog, "_SLACK_PIECES", 40)
        log, stored, expected = Changelog(), dict[int, bytes](), dict[str, bytes]()
        for changes in commits:
            pieces, head = log.append(changes)
            assert all(len(one) <= piece for one in pieces)
            stored |= dict(enumerate(pieces, log.head.next))
            log.take(changes, pieces, head)
            stored = {number: content for number, content in stored.items() if number >= head.first}
            expected = {name: content for name, content in (expected | changes).items() if content is not None}
            assert Head.decode(head.encode()) == head == log.head
            again = Changelog(head, b"".join(stored[number] for number in range(head.first, head.next)))
            assert again.records == log.records == expected


def test_what_is_out_of_date_is_bounded() -> None:
    log, most = Changelog(), 0
    for number in range(3000):
        changes = {"a": bytes(2000), "b": str(number).encode()}
        pieces, head = log.append(changes)
        log.take(changes, pieces, head)
        most = max(most, head.next - head.first)
    assert most <= 1025
    assert log.head.first > 1000


def test_another_releases_layout_is_refused() -> None:
    with pytest.raises(RefusedError, match="their layout is 9"):
        Head.decode(pb.LogHead(layout=9).SerializeToString())


def test_what_makes_no_sense_is_an_error() -> None:
    with pytest.raises(CorruptError, match="head of the scheduler's records"):
        Head.decode(b"\xff")
    with pytest.raises(CorruptError, match="records make no sense"):
        Changelog(Head(0, 1), b"\xff")
