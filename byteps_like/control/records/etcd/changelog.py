"""Records as a log of changes, in pieces that etcd takes: how they are laid out. Nothing here makes calls.

A commit appends its changes to the log, in as many pieces as they need, and the request that puts the last piece moves
the *head*, which says what counts: so a commit of any size is there whole or not at all. When most of the log is out
of date, a commit writes all records anew, and the head begins there.

Requests of etcd are limited to 1.5 MiB and 128 operations (its flags --max-request-bytes, --max-txn-ops); one of ours
has a piece and at most three operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from byteps_like.control.records.records import Changes
from byteps_like.control.v1 import records_pb2 as pb
from byteps_like.errors import CorruptError, RefusedError

PIECE = 1 << 20
"""Bytes of the log in one key, at most."""
LAYOUT = 1
_SLACK_BYTES, _SLACK_PIECES = 1 << 20, 1024
"""Beyond twice what the records need, before all are written anew."""


@dataclass(frozen=True)
class Head:
    """Pieces `first` to `next` - 1 count."""

    first: int = 0
    next: int = 0

    def encode(self) -> bytes:
        """For a key's value."""
        return pb.LogHead(layout=LAYOUT, first=self.first, next=self.next).SerializeToString()

    @classmethod
    def decode(cls, content: bytes) -> Head:
        """Raises RefusedError for another release's, CorruptError for what makes no sense."""
        try:
            head = pb.LogHead.FromString(content)
        except DecodeError as error:
            raise CorruptError(f"the head of the scheduler's records makes no sense: {error}") from None
        if head.layout != LAYOUT:
            raise RefusedError(
                f"the scheduler's records were written by another release: their layout is {head.layout}"
            )
        return cls(head.first, head.next)


class Changelog:
    """What a job's records are, and what of the log they take."""

    def __init__(self, head: Head | None = None, content: bytes = b"") -> None:
        """`content`: of all pieces that count, one after the other. Raises CorruptError."""
        self.head = head or Head()
        self._bytes = len(content)
        self.records: dict[str, bytes] = {}
        try:
            changes = pb.Changes.FromString(content).changes
        except DecodeError as error:
            raise CorruptError(f"the scheduler's records make no sense: {error}") from None
        _apply(self.records, {one.name: one.content if one.HasField("content") else None for one in changes})

    def append(self, changes: Changes) -> tuple[list[bytes], Head]:
        """The pieces of a commit, from `head.next` on or, where `first` of the new head says so, from there on; and the
        new head. Nothing has changed yet: see `take`."""
        content = _encode(changes)
        needed = sum(len(name) + len(record) for name, record in self.records.items())
        pieces = self.head.next - self.head.first
        first = self.head.first
        if self._bytes + len(content) > 2 * needed + _SLACK_BYTES or pieces > _SLACK_PIECES:
            after = dict(self.records)
            _apply(after, changes)
            content, first = _encode(after), self.head.next
        cut = [content[at : at + PIECE] for at in range(0, len(content), PIECE)] or [b""]
        return cut, Head(first, self.head.next + len(cut))

    def take(self, changes: Changes, pieces: list[bytes], head: Head) -> None:
        """What `append` gave is stored."""
        self._bytes = sum(map(len, pieces)) + (self._bytes if head.first == self.head.first else 0)
        self.head = head
        _apply(self.records, changes)


def _apply(records: dict[str, bytes], changes: Changes) -> None:
    for name, content in changes.items():
        if content is None:
            records.pop(name, None)
        else:
            records[name] = content


def _encode(changes: Changes) -> bytes:
    return pb.Changes(
        changes=[pb.Change(name=name, content=content) for name, content in changes.items()]
    ).SerializeToString()
