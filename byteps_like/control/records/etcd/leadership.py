"""The right to write: the leader key. It lives as long as its lease, which its holder keeps alive; the revision that
created it is the term, which every request of its holder compares. So nothing is written in a term that is over.

A holder knows by its own clock when its lease may have ended, since etcd counts from a later moment: it has then
stopped telling anybody anything.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from byteps_like.control.records.etcd.calls import EtcdApi
from byteps_like.control.v1 import etcd_rpc_pb2 as rpc
from byteps_like.errors import BytePSLikeError, RefusedError, SystemCallError

LEASE_SECONDS = 3
"""That a scheduler may be silent before another one takes over: 0.3 of the 10 s after which members are given up."""
REVOKE_SECONDS = 1.0


def boot_clock() -> float:
    """Seconds that go on while the machine sleeps, as those of the etcd do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Holder:
    """Whoever has the leader key."""

    term: int
    revision: int
    """Of the etcd when it was seen."""
    name: str


@dataclass(frozen=True)
class SeenKey:
    """What a key was when it was seen last."""

    key: bytes
    revision: int = 0
    """Of its last change; 0: there was no such key."""


class Leadership:
    """One process's claim to the leader key. `renew` and `check` may be called on other threads than the rest."""

    def __init__(self, api: EtcdApi, key: bytes, clock: Callable[[], float] = boot_clock) -> None:
        self.term = 0
        """While it is 0 this one has never ruled."""
        self._api, self._key, self._clock = api, key, clock
        self._name = f"host {socket.gethostname()}, pid {os.getpid()}"
        self._lease, self._seconds, self._ends = 0, 0, 0.0
        self._loss: BytePSLikeError | None = None

    def begin(self, seconds: float = LEASE_SECONDS) -> Holder | None:
        """Takes the key if nobody has it; else who has. Blocks for up to `seconds`. Raises SystemCallError."""
        began = self._clock()
        self._lease, self._seconds = self._api.grant(LEASE_SECONDS, seconds)
        absent = rpc.Compare(key=self._key, target=rpc.Compare.CREATE, create_revision=0)
        put = rpc.PutRequest(key=self._key, value=self._name.encode(), lease=self._lease)
        request = rpc.TxnRequest(compare=[absent], success=[rpc.RequestOp(request_put=put)], failure=[_look(self._key)])
        answer = self._api.txn(request, seconds)
        if answer.succeeded:
            self._start(answer.header.revision, began)
            return None
        found = answer.responses[0].response_range.kvs[0]
        if found.lease == self._lease:  # an attempt whose answer was lost
            self._start(found.create_revision, began)
            return None
        self._api.revoke(self._lease, seconds)
        return _holder(answer.responses[0].response_range, answer.header)

    def await_end(self, holder: Holder, seconds: float) -> None:
        """Returns when the holder has the key no more; at the latest when the time is over. Raises SystemCallError."""
        self._api.await_removal(self._key, holder.revision, seconds)

    @property
    def seconds(self) -> int:
        """That a lease lasts in this etcd, which may want more than was asked for."""
        return self._seconds

    @property
    def left(self) -> float:
        """Seconds for which nobody else can rule, by this one's own clock."""
        return self._ends - self._clock()

    @property
    def pause(self) -> float:
        """Seconds between two calls of `renew`."""
        return self._seconds / 3

    def renew(self) -> None:
        """Keeps the key. Blocks for as long as there is hope; raises as `check` does."""
        self.check()
        began = self._clock()
        try:
            seconds = self._api.keep_alive(self._lease, self.left)
        except SystemCallError as error:
            raise self._lose(SystemCallError(f"can't keep the right to rule: {error}")) from error
        if seconds <= 0:
            self._lose(RefusedError(f"the lease of term {self.term} has ended: another scheduler may rule"))
        else:
            self._ends = began + seconds
        self.check()

    def check(self) -> None:
        """Raises RefusedError or SystemCallError if somebody else may rule. Does not block."""
        if self._loss is None and self.left <= 0:
            silence = f"{self._seconds} s without an answer of the etcd, or of this process"
            self._lose(RefusedError(f"term {self.term} is over after {silence}: another scheduler may rule"))
        if self._loss is not None:
            raise self._loss

    def act(self, operations: Sequence[rpc.RequestOp], unchanged: SeenKey | None = None) -> rpc.TxnResponse:
        """All operations at one moment of this term, if a key is `unchanged`; else it has not `succeeded`, and its last
        response shows that key. Raises as `check` does.
        """
        self.check()
        compare = [rpc.Compare(key=self._key, target=rpc.Compare.CREATE, create_revision=self.term)]
        failure = [_look(self._key)]
        if unchanged is not None:
            compare.append(rpc.Compare(key=unchanged.key, target=rpc.Compare.MOD, mod_revision=unchanged.revision))
            failure.append(_look(unchanged.key))
        answer = self._api.txn(rpc.TxnRequest(compare=compare, success=operations, failure=failure), self.left)
        if not answer.succeeded:
            self._check_holder(answer)
        self.check()
        return answer

    def end(self) -> None:
        """Lets another one rule. Idempotent."""
        if self.term and self._loss is None:
            self._lose(RefusedError(f"term {self.term} was brought to its end"))
            with suppress(SystemCallError):  # it ends by itself
                self._api.revoke(self._lease, REVOKE_SECONDS)

    def _start(self, term: int, began: float) -> None:
        self.term, self._ends = term, began + self._seconds

    def _lose(self, why: BytePSLikeError) -> BytePSLikeError:
        """Returns why it was lost first."""
        self._loss = self._loss or why
        return self._loss

    def _check_holder(self, answer: rpc.TxnResponse) -> None:
        holder = _holder(answer.responses[0].response_range, answer.header)
        if holder is None:
            self._lose(RefusedError(f"the leader key of term {self.term} is gone: another scheduler may rule"))
        elif holder.term != self.term:
            why = f"another scheduler rules by now ({holder.name}): term {holder.term}, this one's was {self.term}"
            self._lose(RefusedError(why))


def _look(key: bytes) -> rpc.RequestOp:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def _holder(found: rpc.RangeResponse, header: rpc.ResponseHeader) -> Holder | None:
    if not found.kvs:
        return None
    leader = found.kvs[0]
    return Holder(leader.create_revision, header.revision, leader.value.decode(errors="replace"))
