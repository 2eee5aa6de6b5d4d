"""Calls of an etcd: each has a deadline, and is made again, by the next of its members, as long as that may help."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from byteps_like.control.records.etcd.location import Location
from byteps_like.control.v1 import etcd_rpc_pb2 as rpc
from byteps_like.errors import SystemCallError

Answer = TypeVar("Answer", bound=Message)

_ATTEMPT_SECONDS = 1.0
"""After which another member of the etcd is asked."""
_PAUSE_SECONDS = 0.05
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_STALE_TOKEN, _BUSY = "invalid auth token", "too many requests"
_REMEDIES = {
    "request is too large": "start etcd with --max-request-bytes=1572864, its default, or more",
    "too many operations": "start etcd with --max-txn-ops=128, its default, or more",
    "database space exceeded": "compact and defragment it, disarm its alarm, and have it compact by itself"
    " (--auto-compaction-retention)",
    "permission denied": "give this user a role that may read and write all keys of the prefix",
    "authentication failed": "check user and password_file",
    "user name is empty": "name a user: etcd://user@host:port?password_file=FILE",
}


class EtcdApi(Protocol):
    """What is asked of an etcd. Each call blocks for up to `seconds`, and raises SystemCallError if it has failed, or
    may have: then it may have been done. Thread-safe."""

    def txn(self, request: rpc.TxnRequest, seconds: float) -> rpc.TxnResponse:
        """All of it at one moment. Must bear being made twice."""

    def grant(self, ttl: int, seconds: float) -> tuple[int, int]:
        """A new lease, and the seconds it lasts: `ttl` at least."""

    def keep_alive(self, lease: int, seconds: float) -> int:
        """The seconds that it lasts from now on; 0: it has ended."""

    def revoke(self, lease: int, seconds: float) -> None:
        """Ends it, and removes its keys."""

    def await_removal(self, key: bytes, revision: int, seconds: float) -> None:
        """Returns when the key has been removed since `revision`; at the latest when the time is over."""

    def close(self) -> None:
        """Cuts off what is under way. Idempotent."""


class EtcdCalls:
    """Of the etcd at a location. Connects with the first call."""

    def __init__(self, location: Location) -> None:
        """Raises ConfigError for files that can't be read."""
        self._location = location
        self._password = (location.read("password_file") or b"").decode().strip()
        self._channels = [_open(location, endpoint) for endpoint in location.endpoints]
        self._asked = 0
        """Which member of the etcd is asked."""
        self._token = ""
        self._is_closed = False

    def txn(self, request: rpc.TxnRequest, seconds: float) -> rpc.TxnResponse:
        """See EtcdApi."""
        return self._call("KV/Txn", request, rpc.TxnResponse, seconds)

    def grant(self, ttl: int, seconds: float) -> tuple[int, int]:
        """See EtcdApi."""
        answer = self._call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl), rpc.LeaseGrantResponse, seconds)
        return answer.ID, answer.TTL

    def keep_alive(self, lease: int, seconds: float) -> int:
        """See EtcdApi."""
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        return self._call("Lease/LeaseKeepAlive", request, rpc.LeaseKeepAliveResponse, seconds, streams=True).TTL

    def revoke(self, lease: int, seconds: float) -> None:
        """See EtcdApi."""
        self._call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), rpc.LeaseRevokeResponse, seconds)

    def await_removal(self, key: bytes, revision: int, seconds: float) -> None:
        """See EtcdApi."""
        create = rpc.WatchCreateRequest(key=key, start_revision=revision + 1)
        done = threading.Event()
        channel = self._channels[self._asked]
        make: Any = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=rpc.WatchRequest.SerializeToString,
            response_deserializer=rpc.WatchResponse.FromString,
        )
        call = make(
            _kept_open(rpc.WatchRequest(create_request=create), done), timeout=seconds, metadata=self._metadata()
        )
        try:
            _await_removal(call)
        except grpc.RpcError as error:
            if not _ran_out(error):
                self._look_into(error)
        finally:
            done.set()
            call.cancel()

    def close(self) -> None:
        """See EtcdApi."""
        self._is_closed = True
        for channel in self._channels:
            channel.close()

    def _call(
        self, method: str, request: Message, kind: type[Answer], seconds: float, *, streams: bool = False
    ) -> Answer:
        deadline, attempts, why = time.monotonic() + seconds, 0, "no answer"
        while True:
            # grpc connects only while somebody waits: each member is tried for an instant first, then for longer.
            left = max(min(deadline - time.monotonic(), _ATTEMPT_SECONDS), 0.0)
            patience = {"timeout": left, "wait_for_ready": attempts >= len(self._channels)}
            try:
                if self._location.user and not self._token:
                    self._token = self._authenticate(patience)
                return self._attempt(method, request, kind, patience, streams)
            except ValueError as error:  # grpc's, of a channel that was closed
                raise SystemCallError(f"the connection to the {self._location} was closed: {error}") from None
            except grpc.RpcError as error:
                self._look_into(error)
                if not _ran_out(error):
                    why = error.details() or why
            attempts += 1
            if self._is_closed or time.monotonic() + _PAUSE_SECONDS >= deadline:
                raise SystemCallError(f"can't reach the {self._location} within {seconds:.1f} s: {why}")
            time.sleep(_PAUSE_SECONDS)

    def _attempt(
        self, method: str, request: Message, kind: type[Answer], patience: dict[str, Any], streams: bool = False
    ) -> Answer:
        channel = self._channels[self._asked]
        make: Any = channel.stream_stream if streams else channel.unary_unary
        callee = make(
            f"/etcdserverpb.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=kind.FromString,
        )
        if not streams:
            answer: Answer = callee(request, metadata=self._metadata(), **patience)
            return answer
        call = callee(iter((request,)), metadata=self._metadata(), **patience)
        try:
            first: Answer | None = next(call, None)
        finally:
            call.cancel()
        if first is None:
            raise SystemCallError(f"the {self._location} gave {method} no answer")
        return first

    def _authenticate(self, patience: dict[str, Any]) -> str:
        request = rpc.AuthenticateRequest(name=self._location.user, password=self._password)
        return self._attempt("Auth/Authenticate", request, rpc.AuthenticateResponse, patience).token

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    def _look_into(self, error: Any) -> None:
        """Returns if the call may be made again. Raises SystemCallError if that is in vain."""
        code, text = error.code(), error.details() or ""
        if _STALE_TOKEN in text and self._token:
            self._token = ""
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            raise SystemCallError(f"what listens at {self._endpoint} is no etcd of version 3: {text}")
        elif code in _PASSING or _ran_out(error):
            self._asked = (self._asked + 1) % len(self._channels)
        elif _BUSY not in text:
            remedy = next((f"; {remedy}" for cause, remedy in _REMEDIES.items() if cause in text), "")
            raise SystemCallError(f"the {self._location} refused: {text or code.name.lower()}{remedy}")

    @property
    def _endpoint(self) -> str:
        return self._location.endpoints[self._asked]


def _ran_out(error: Any) -> bool:
    """Whether our deadline has passed; etcd may notice before we do, and has no code for that."""
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED or "context deadline exceeded" in (error.details() or "")


def _open(location: Location, endpoint: str) -> grpc.Channel:
    if not location.is_encrypted:
        return grpc.insecure_channel(endpoint, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(location.read("ca"), location.read("key"), location.read("cert"))
    return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)


def _kept_open(request: rpc.WatchRequest, done: threading.Event) -> Iterator[rpc.WatchRequest]:
    """etcd takes the end of the requests for the end of the watch."""
    yield request
    done.wait()


def _await_removal(responses: Iterator[rpc.WatchResponse]) -> None:
    for response in responses:
        if response.canceled or any(event.type == event.DELETE for event in response.events):
            return
