"""A changelog in the etcd. All requests compare the term, those that write the head as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from byteps_like.control.records.etcd.changelog import Changelog, Head
from byteps_like.control.records.etcd.leadership import Leadership, SeenKey
from byteps_like.control.records.records import Changes
from byteps_like.control.v1 import etcd_kv_pb2 as kv
from byteps_like.control.v1 import etcd_rpc_pb2 as rpc
from byteps_like.errors import CorruptError, RefusedError

_PAGE = 16
"""Pieces of the log read at a time."""


class StoredLog:
    """A job's changelog in the etcd, as it was at the beginning of this rule."""

    def __init__(self, rule: Leadership, base: str) -> None:
        """Reads it. Raises as `Records.commit` does, and CorruptError."""
        self._rule, self._base = rule, base
        self._head = SeenKey(f"{base}head".encode())
        found = self._read(_range(self._head.key))
        self._log = Changelog()
        if found:
            self._head = replace(self._head, revision=found[0].mod_revision)
            head = Head.decode(found[0].value)
            self._log = Changelog(head, b"".join(self._pieces(head)))

    @property
    def records(self) -> dict[str, bytes]:
        """All of them."""
        return dict(self._log.records)

    def append(self, changes: Changes) -> None:
        """Commits. Raises as Records do: then the next one sees all of it or nothing."""
        pieces, head = self._log.append(changes)
        puts = [_put(self._piece(number), piece) for number, piece in enumerate(pieces, self._log.head.next)]
        for put in puts[:-1]:
            self._rule.act([put], self._head)
        last = [puts[-1], _put(self._head.key, head.encode()), *self._removal(head)]
        answer = self._rule.act(last, self._head)
        self._head = replace(self._head, revision=self._moved_at(answer, head))
        self._log.take(changes, pieces, head)

    def _moved_at(self, answer: rpc.TxnResponse, head: Head) -> int:
        """The head is compared so that no late twin of a request moves it back; the first of twins may be the one whose
        answer was lost."""
        if answer.succeeded:
            return answer.header.revision
        found = answer.responses[1].response_range.kvs
        if not found or found[0].value != head.encode():
            raise RefusedError(f"the scheduler's records at {self._base} were changed, and not by a scheduler")
        return found[0].mod_revision

    def _pieces(self, head: Head) -> Iterator[bytes]:
        at = head.first
        while at < head.next:
            page = self._read(_range(self._piece(at), self._piece(head.next)))
            if not page or page[0].key != self._piece(at):
                raise CorruptError(f"the scheduler's records make no sense: piece {at} of {head.next} is missing")
            yield from (one.value for one in page)
            at += len(page)

    def _removal(self, new: Head) -> list[rpc.RequestOp]:
        """Of pieces that count no more."""
        if new.first == self._log.head.first:
            return []
        gone = rpc.DeleteRangeRequest(key=self._piece(0), range_end=self._piece(new.first))
        return [rpc.RequestOp(request_delete_range=gone)]

    def _piece(self, number: int) -> bytes:
        return f"{self._base}log/{number:016d}".encode()

    def _read(self, operation: rpc.RequestOp) -> Sequence[kv.KeyValue]:
        return self._rule.act([operation]).responses[0].response_range.kvs


def _put(key: bytes, value: bytes) -> rpc.RequestOp:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))


def _range(key: bytes, end: bytes = b"") -> rpc.RequestOp:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=end, limit=_PAGE if end else 0))
