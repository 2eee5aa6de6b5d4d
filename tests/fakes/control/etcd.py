"""An etcd in memory, of which nothing but its meaning is there: revisions, transactions, leases by a given clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from byteps_like.control.v1 import etcd_kv_pb2 as kv
from byteps_like.control.v1 import etcd_rpc_pb2 as rpc
from byteps_like.errors import SystemCallError


@dataclass(frozen=True)
class Written:
    """A key's new value."""

    revision: int
    key: bytes
    value: bytes
    lease: int


class EtcdInMemory:
    """Each call is carried out at once. What it says of leases and comparisons is what etcd's documentation says."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.revision = 1
        self.keys: dict[bytes, kv.KeyValue] = {}
        self.leases: dict[int, tuple[int, float]] = {}
        """Seconds, and when it ends."""
        self._last_lease = 0
        self.history: list[Written] = []

    def txn(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        self._expire()
        succeeded = all(self._holds(one) for one in request.compare)
        operations = request.success if succeeded else request.failure
        if any(one.request_put.lease and one.request_put.lease not in self.leases for one in operations):
            raise SystemCallError("requested lease not found")
        if any(one.HasField("request_put") or one.HasField("request_delete_range") for one in operations):
            self.revision += 1
        responses = [self._carry_out(one) for one in operations]
        header = rpc.ResponseHeader(revision=self.revision)
        return rpc.TxnResponse(header=header, succeeded=succeeded, responses=responses)

    def grant(self, ttl: int) -> tuple[int, int]:
        self._expire()
        self._last_lease += 1
        self.leases[self._last_lease] = (ttl, self._clock() + ttl)
        return self._last_lease, ttl

    def keep_alive(self, lease: int) -> int:
        self._expire()
        if lease not in self.leases:
            return 0
        ttl, _ = self.leases[lease]
        self.leases[lease] = (ttl, self._clock() + ttl)
        return ttl

    def revoke(self, lease: int) -> None:
        self._expire()
        if self.leases.pop(lease, None):
            self._remove_keys_of(lease)

    def has(self, key: bytes) -> bool:
        self._expire()
        return key in self.keys

    def _expire(self) -> None:
        for lease, (_, ends) in list(self.leases.items()):
            if ends <= self._clock():
                del self.leases[lease]
                self._remove_keys_of(lease)

    def _remove_keys_of(self, lease: int) -> None:
        for key in [key for key, found in self.keys.items() if found.lease == lease]:
            self.revision += 1
            del self.keys[key]

    def _holds(self, compare: rpc.Compare) -> bool:
        assert compare.result == rpc.Compare.EQUAL
        found = self.keys.get(compare.key, kv.KeyValue())
        if compare.target == rpc.Compare.CREATE:
            return found.create_revision == compare.create_revision
        assert compare.target == rpc.Compare.MOD
        return found.mod_revision == compare.mod_revision

    def _carry_out(self, operation: rpc.RequestOp) -> rpc.ResponseOp:
        if operation.HasField("request_put"):
            self._put(operation.request_put)
            return rpc.ResponseOp(response_put=rpc.PutResponse())
        if operation.HasField("request_delete_range"):
            gone = self._between(operation.request_delete_range.key, operation.request_delete_range.range_end)
            for key in gone:
                del self.keys[key]
            return rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse(deleted=len(gone)))
        look = operation.request_range
        found = [self.keys[key] for key in self._between(look.key, look.range_end)]
        page = found[: look.limit or None]
        return rpc.ResponseOp(response_range=rpc.RangeResponse(kvs=page, more=len(page) < len(found), count=len(found)))

    def _put(self, put: rpc.PutRequest) -> None:
        before = self.keys.get(put.key, kv.KeyValue(create_revision=self.revision))
        self.keys[put.key] = kv.KeyValue(
            key=put.key, value=put.value, lease=put.lease, create_revision=before.create_revision,
            mod_revision=self.revision, version=before.version + 1,
        )  # fmt: skip
        self.history.append(Written(self.revision, put.key, put.value, put.lease))

    def _between(self, key: bytes, end: bytes) -> list[bytes]:
        return sorted(one for one in self.keys if (key <= one < end if end else one == key))
