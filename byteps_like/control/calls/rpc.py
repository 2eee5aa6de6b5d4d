"""Calls with proof, both sides: what grpc carries here are bytes, signed and checked before they are parsed.

A request's proof is checked before its body is read. A unary answer carries its proof in the trailing metadata, a
stream's in the initial metadata (it proves who answers; messages of a stream are not signed one by one), with the term
of who answers, if it has one. A failed call carries a serialized Error in its trailing metadata, one that has to be
signed anew a challenge.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from byteps_like.control.calls.entrance import Entrance, peer_name
from byteps_like.control.calls.proof import Admitted, CallerSession, ChallengedError, Keys, Purpose, Verifier
from byteps_like.control.calls.wire import error_from_wire, error_to_wire
from byteps_like.control.v1 import types_pb2 as types
from byteps_like.errors import BytePSLikeError, CapacityError, DeadlineError, InvalidArgumentError, RefusedError

log = logging.getLogger(__name__)

JOB, ADDRESSEE = "byteps-like-job-bin", "byteps-like-addressee-bin"
PROOF, ERROR, CHALLENGE = "byteps-like-proof-bin", "byteps-like-error-bin", "byteps-like-challenge-bin"
CLOCK = "byteps-like-clock"
"""In the trailer of an answer: nanoseconds of the answerer's monotonic clock."""
TERM = "byteps-like-term"
"""With the proof of an answer: the term of the scheduler that answers. Of who has none it is not there, and 0."""
_DIGITS = 19
LARGEST_REQUEST, LARGEST_ANSWER = 4 << 20, 64 << 20
STREAMS = 16
"""Calls of one connection at a time; what comes beyond waits for one of them to end."""

_UNPROVEN_SECONDS = 5
"""For a connection to become one of HTTP/2, and then for which it may be without any call."""
_UNREAD_BYTES = 16 << 10
"""Of each call, taken from the network before somebody wants to read it: all that an unproven body costs."""
_CHALLENGES = 3
"""In a row, after which a caller gives up: each is a new session with a process that had not heard of the last one."""

Unary = Callable[[Any], Awaitable[Message]]
Write = Callable[[bytes], Awaitable[None]]
Stream = Callable[[Any, Write], Awaitable[None]]
Metadata = tuple[tuple[str, bytes], ...]


class UnreachableError(Exception):
    """Nobody answered, or the connection broke: the caller decides whether to try again."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details
        """All that grpc says of it."""


class NotAnsweredError(Exception):
    """Of a handler: its caller should take the connection for broken, and try again."""


def _options(silence: float) -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", int(silence * 1000)),
        ("grpc.http2.ping_timeout_ms", int(silence * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def channel_options(silence: float) -> list[tuple[str, int]]:
    """Of a caller: each channel is a connection. A host that answers no ping for `silence` seconds is cut off.

    `silence` must be long: a stopped process does not answer pings either, and must not be taken for dead. The end of
    a process is seen at once, since its kernel closes the connection.
    """
    return [
        *_options(silence),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # what grpc gives one attempt to connect
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.max_receive_message_length", LARGEST_ANSWER),
        ("grpc.max_send_message_length", LARGEST_REQUEST),
        ("grpc.enable_http_proxy", 0),
    ]


def server_options(silence: float, connections: int) -> list[tuple[str, int]]:
    """Of whoever is called, by at most `connections` connections; `silence` as for channels."""
    return [
        *_options(silence),
        ("grpc.max_receive_message_length", LARGEST_REQUEST),
        ("grpc.max_send_message_length", LARGEST_ANSWER),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.server_handshake_timeout_ms", _UNPROVEN_SECONDS * 1000),
        ("grpc.max_connection_idle_ms", _UNPROVEN_SECONDS * 1000),
        ("grpc.http2.bdp_probe", 0),  # it would let a fast sender fill more and more before anybody reads
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        ("grpc.so_reuseport", 0),
    ]


# --- server side ---


class ProvenService(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Serves `methods` (by name) of `service`; each gets the parsed request of a caller that proved the secret.

    Lives on one event loop.
    """

    def __init__(
        self, service: ServiceDescriptor, methods: Mapping[str, Unary | Stream], verifier: Verifier, term: int = 0
    ) -> None:
        """`term`: of the rule under which it answers; 0: there are no terms."""
        self._verifier, self._term = verifier, term
        self._methods = {f"/{service.full_name}/{method.name}": method for method in service.methods}
        self._behaviours = methods
        self._refusals = Refusals()
        self._entrance: Entrance | None = None

    def stand_behind(self, entrance: Entrance | None) -> None:
        """From now on connections come by `entrance`, which hears who has proven the secret."""
        self._entrance = entrance

    @property
    def refused(self) -> int:
        """How many calls were, for want of a proof."""
        return self._refusals.count

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Called with a call's metadata, when nothing of its body has been read."""
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        metadata = _as_dict(handler_call_details.invocation_metadata)
        job, addressee = (metadata.get(key, b"").decode(errors="replace") for key in (JOB, ADDRESSEE))
        assert method.containing_service is not None
        try:
            purpose = Purpose(job, addressee, method.containing_service.full_name, method.name)
            admitted = self._verifier.admit(purpose, metadata.get(PROOF))
        except (RefusedError, ChallengedError) as refusal:
            return grpc.stream_stream_rpc_method_handler(partial(self._refuse, method, refusal))
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(partial(self._serve_stream, method, admitted))
        return grpc.unary_unary_rpc_method_handler(partial(self._serve_unary, method, admitted))

    async def _serve_unary(self, method: MethodDescriptor, admitted: Admitted, body: bytes, context: Any) -> bytes:
        behaviour: Any = self._behaviours[method.name]
        self._prove(context)
        try:
            answer: bytes = (await behaviour(_parse(method, admitted, body))).SerializeToString()
        except BytePSLikeError as error:
            await self._fail(admitted, error, context)
        except NotAnsweredError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except Exception as error:  # no caller should take it for a broken connection
            log.exception("a call of %s failed", method.name)
            await self._fail(admitted, BytePSLikeError(f"{method.name} failed: {error!r}"), context)
        context.set_trailing_metadata((*self._sign(admitted, "answer", answer), (CLOCK, str(time.monotonic_ns()))))
        return answer

    # A coroutine that writes, not a generator: a generator's end would wait for its collection after a broken stream.
    async def _serve_stream(self, method: MethodDescriptor, admitted: Admitted, body: bytes, context: Any) -> None:
        behaviour: Any = self._behaviours[method.name]
        self._prove(context)
        try:
            request = _parse(method, admitted, body)
            await context.send_initial_metadata(self._sign(admitted, "stream", b""))
            await behaviour(request, context.write)
        except BytePSLikeError as error:
            await self._fail(admitted, error, context)
        except NotAnsweredError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    # For a stream of requests, whatever the method: grpc reads nothing of those by itself.
    async def _refuse(
        self, method: MethodDescriptor, refusal: RefusedError | ChallengedError, requests: Any, context: Any
    ) -> None:
        del requests
        trailer: Metadata = ()
        if isinstance(refusal, ChallengedError):
            trailer = ((CHALLENGE, refusal.challenge),)
        else:
            self._refusals.log(self._peer_of(context), f"{method.name}: {refusal}")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(refusal), trailer)

    def _prove(self, context: Any) -> None:
        if self._entrance is not None:
            self._entrance.prove(peer_name(context.peer()))

    def _peer_of(self, context: Any) -> str:
        peer: str = context.peer()
        return (self._entrance.visitor_of(peer_name(peer)) if self._entrance is not None else "") or peer

    async def _fail(self, admitted: Admitted, error: BytePSLikeError, context: Any) -> NoReturn:
        body = error_to_wire(error).SerializeToString()
        trailer = ((ERROR, body), *self._sign(admitted, "error", body))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "see the typed error", trailer)
        raise error

    def _sign(self, admitted: Admitted, kind: str, body: bytes) -> tuple[tuple[str, bytes | str], ...]:
        proof = (PROOF, self._verifier.keys.answered(admitted.proof, kind, body, self._term))
        return (proof, (TERM, str(self._term))) if self._term else (proof,)


class Refusals:
    """Logs whom a service has refused: one line per host and second, with how many there were since the last one."""

    MOST_HOSTS = 256

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.count = 0
        self._hosts: dict[str, tuple[float, int]] = {}

    def log(self, peer: str, text: str) -> None:
        """`peer` as an entrance or grpc writes it: "tcp 10.0.0.1:4711", "ipv4:10.0.0.1:4711"."""
        self.count += 1
        host, now = peer.rpartition(":")[0], self._clock()
        last, unsaid = self._hosts.get(host, (-1.0, 0))
        if now - last < 1.0:
            self._hosts[host] = (last, unsaid + 1)
            return
        self._hosts.pop(host, None)
        if len(self._hosts) >= self.MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        self._hosts[host] = (now, 0)
        more = f" ({unsaid} more of its calls since the last such line)" if unsaid else ""
        log.warning("refused a call from %s%s: %s", host, more, text)


def _parse(method: MethodDescriptor, admitted: Admitted, body: bytes) -> Message:
    admitted.check_body(body)
    request_class = GetMessageClass(method.input_type)
    try:
        return request_class.FromString(body)
    except DecodeError as error:
        raise InvalidArgumentError(f"malformed {request_class.__name__}: {error}") from None


# --- client side ---


@dataclass(frozen=True)
class Callee:
    """Who is called: of which job, with which secret, by which name, which its Verifier has, too."""

    job: str
    secret: bytes = field(repr=False)
    addressee: str
    peer: str
    """The name in messages, such as "scheduler 10.0.0.1:9000"."""


class Caller:
    """Makes calls of one service over one channel. For one event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        service: ServiceDescriptor,
        callee: Callee,
        on_clock: Callable[[int, int, int], None] | None = None,
        on_term: Callable[[int], None] = lambda term: None,  # noqa: ARG005
    ) -> None:
        """`on_clock` gets, of each answered call: when it was sent, the other side's clock, when it came back (ns).
        `on_term` gets the term of each answer, error and message that is proven: what it raises, the call does."""
        self._on_clock, self._on_term = on_clock, on_term
        self._callee, self._peer, self._service = callee, callee.peer, service.full_name
        self._keys = Keys.of(callee.secret)
        self._session = CallerSession(self._keys)
        self._methods: dict[str, tuple[Any, type[Message]]] = {}
        for method in service.methods:
            make: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
            self._methods[method.name] = (
                make(f"/{service.full_name}/{method.name}"),
                GetMessageClass(method.output_type),
            )

    async def call(self, name: str, request: Message, timeout: float) -> Any:
        """The answer. Raises the typed error of the other side, RefusedError, DeadlineError or UnreachableError."""
        multicallable, answer_class = self._methods[name]
        body = self._body(name, request)
        deadline = time.monotonic() + timeout
        for _ in range(_CHALLENGES):
            metadata, proof = self._sign(name, body)
            sent = time.monotonic_ns()
            call = multicallable(body, timeout=max(deadline - time.monotonic(), 0.0), metadata=metadata)
            try:
                answer = await call
                received = time.monotonic_ns()
                trailer = _as_dict(await call.trailing_metadata())
            except grpc.aio.AioRpcError as error:
                if self._is_challenge(error, proof):
                    continue
                raise self._translate(name, proof, error, timeout) from None
            except asyncio.CancelledError:
                raise _cut_off() from None
            self._check(name, proof, trailer, "answer", answer)
            self._tell_clock(sent, trailer.get(CLOCK, ""), received)
            return answer_class.FromString(answer)
        raise self._never_satisfied(name)

    async def stream(
        self, name: str, request: Message, on_open: Callable[[], None] = lambda: None
    ) -> AsyncIterator[Any]:
        """The messages, until the other side ends the stream; `on_open` is called once that has proven itself. Raises
        as `call` does."""
        multicallable, answer_class = self._methods[name]
        body = self._body(name, request)
        for _ in range(_CHALLENGES):
            metadata, proof = self._sign(name, body)
            call = multicallable(body, metadata=metadata)
            try:
                initial = _as_dict(await call.initial_metadata())
                if PROOF in initial:
                    self._check(name, proof, initial, "stream", b"")
                    on_open()
                async for message in call:
                    self._check(name, proof, initial, "stream", b"")
                    yield answer_class.FromString(message)
                return
            except grpc.aio.AioRpcError as error:
                if not self._is_challenge(error, proof):
                    raise self._translate(name, proof, error, 0.0) from None
            except asyncio.CancelledError:
                raise _cut_off() from None
            finally:
                call.cancel()
        raise self._never_satisfied(name)

    def _body(self, name: str, request: Message) -> bytes:
        body = request.SerializeToString()
        if len(body) > LARGEST_REQUEST:
            text = f"a {name} request of {len(body)} bytes exceeds the limit of {LARGEST_REQUEST} bytes"
            raise CapacityError(text, operation=name)
        return body

    def _sign(self, name: str, body: bytes) -> tuple[Metadata, bytes]:
        job, addressee = self._callee.job, self._callee.addressee
        proof = self._session.sign(Purpose(job, addressee, self._service, name), body)
        return ((JOB, job.encode()), (ADDRESSEE, addressee.encode()), (PROOF, proof)), proof

    def _is_challenge(self, error: grpc.aio.AioRpcError, proof: bytes) -> bool:
        return self._session.take(_as_dict(error.trailing_metadata()).get(CHALLENGE), proof)

    def _never_satisfied(self, name: str) -> RefusedError:
        return RefusedError(f"the {self._peer} asked {_CHALLENGES} times for a new signature of {name}", operation=name)

    def _tell_clock(self, sent: int, theirs: str, received: int) -> None:
        # Nobody has signed it.
        if self._on_clock is not None and _is_number(theirs):
            self._on_clock(sent, int(theirs), received)

    def _check(self, name: str, proof: bytes, said: Mapping[str, Any], kind: str, body: bytes) -> None:
        written = said.get(TERM, "0")
        term = int(written) if _is_number(written) else 0
        if not self._keys.check_answer(said.get(PROOF), proof, kind, body, term):
            raise RefusedError(
                f"the {self._peer} did not prove that it knows the secret of job {self._callee.job!r}: not ours",
                operation=name,
            )
        self._on_term(term)

    def _translate(self, name: str, proof: bytes, error: grpc.aio.AioRpcError, timeout: float) -> Exception:
        trailer = _as_dict(error.trailing_metadata())
        if ERROR in trailer:
            self._check(name, proof, trailer, "error", trailer[ERROR])
            return error_from_wire(types.Error.FromString(trailer[ERROR]))
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return RefusedError(f"the {self._peer} refused {name}: {details}", operation=name)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(f"the {self._peer} did not answer {name} within {timeout:.1f} s", operation=name)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return RefusedError(
                f"the {self._peer} is not a byteps_like {self._peer.split()[0]}: {details}", operation=name
            )
        # grpc nests its reasons ("failed to connect to all addresses; last error: ...: Connection refused").
        return UnreachableError(details.rpartition(": ")[2].lower() or code.name.lower(), details)


def _is_number(text: str) -> bool:
    return len(text) <= _DIGITS and text.isascii() and text.isdigit()


def _as_dict(metadata: Any) -> dict[str, Any]:
    """Pairs as a dict. `dict(metadata)` won't do: in some releases grpc's class has `keys` that are pairs."""
    return {key: value for key, value in metadata or ()}


def _cut_off() -> BaseException:
    """What a cancelled call means: its task was cancelled, or only its channel was closed under it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return UnreachableError("the connection was closed on this side")
