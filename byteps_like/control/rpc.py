"""Calls with proof, both sides: what grpc carries here are bytes, signed and checked before they are parsed.

A unary answer carries its proof in the trailing metadata, a stream's in the initial metadata (it proves who answers;
messages of a stream are not signed one by one). A failed call carries a serialized Error in its trailing metadata.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from byteps_like.control.proof import Keys, Verifier
from byteps_like.control.v1 import types_pb2 as types
from byteps_like.control.wire import error_from_wire, error_to_wire
from byteps_like.errors import BytePSLikeError, DeadlineError, InvalidArgumentError, RefusedError

log = logging.getLogger(__name__)

JOB, PROOF, ERROR = "byteps-like-job-bin", "byteps-like-proof-bin", "byteps-like-error-bin"
CLOCK = "byteps-like-clock"
"""In the trailer of an answer: nanoseconds of the answerer's monotonic clock."""
LARGEST_MESSAGE = 64 << 20

Unary = Callable[[Any], Awaitable[Message]]
Write = Callable[[bytes], Awaitable[None]]
Stream = Callable[[Any, Write], Awaitable[None]]
Metadata = tuple[tuple[str, bytes], ...]


class UnreachableError(Exception):
    """Nobody answered, or the connection broke: the caller decides whether to try again."""


def options(silence: float) -> list[tuple[str, int]]:
    """Channel and server options. A host that answers no ping for `silence` seconds is cut off.

    `silence` must be long: a stopped process does not answer pings either, and must not be taken for dead. The end of
    a process is seen at once, since its kernel closes the connection.
    """
    return [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", int(silence * 1000)),
        ("grpc.http2.ping_timeout_ms", int(silence * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # what grpc gives one attempt to connect
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.max_receive_message_length", LARGEST_MESSAGE),
        ("grpc.max_send_message_length", LARGEST_MESSAGE),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_http_proxy", 0),
    ]


# --- server side ---


def service_handler(
    service: ServiceDescriptor, methods: Mapping[str, Unary | Stream], verifier: Verifier
) -> grpc.GenericRpcHandler[bytes, bytes]:
    """Serves `methods` (by name) of `service`; each gets the parsed request of a caller that proved the secret."""
    handlers: dict[str, Any] = {}
    for method in service.methods:
        behaviour = methods[method.name]
        if method.server_streaming:
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(_serve_stream(method, behaviour, verifier))
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(_serve_unary(method, behaviour, verifier))
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _serve_unary(method: MethodDescriptor, behaviour: Any, verifier: Verifier) -> Any:
    request_class = GetMessageClass(method.input_type)

    async def serve(body: bytes, context: Any) -> bytes:
        nonce = await _admit(method, body, context, verifier)
        try:
            answer: bytes = (await behaviour(_parse(request_class, body))).SerializeToString()
        except BytePSLikeError as error:
            await _fail(method, nonce, error, context, verifier)
        proof = verifier.keys.answered(method.name, nonce, answer)
        context.set_trailing_metadata(((PROOF, proof), (CLOCK, str(time.monotonic_ns()))))
        return answer

    return serve


def _serve_stream(method: MethodDescriptor, behaviour: Any, verifier: Verifier) -> Any:
    request_class = GetMessageClass(method.input_type)

    # A coroutine that writes, not a generator: a generator's end would wait for its collection after a broken stream.
    async def serve(body: bytes, context: Any) -> None:
        nonce = await _admit(method, body, context, verifier)
        await context.send_initial_metadata(((PROOF, verifier.keys.answered(method.name, nonce, b"")),))
        try:
            await behaviour(_parse(request_class, body), context.write)
        except BytePSLikeError as error:
            await _fail(method, nonce, error, context, verifier)

    return serve


async def _admit(method: MethodDescriptor, body: bytes, context: Any, verifier: Verifier) -> bytes:
    metadata = _as_dict(context.invocation_metadata())
    job = metadata.get(JOB, b"").decode(errors="replace")
    try:
        return verifier.check(job, method.name, metadata.get(PROOF), body)
    except RefusedError as error:
        log.warning("refused %s from %s: %s", method.name, context.peer(), error)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        raise


async def _fail(
    method: MethodDescriptor, nonce: bytes, error: BytePSLikeError, context: Any, verifier: Verifier
) -> NoReturn:
    body = error_to_wire(error).SerializeToString()
    trailer = ((ERROR, body), (PROOF, verifier.keys.answered(method.name, nonce, body)))
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "see the typed error", trailer)
    raise error


def _parse(request_class: type[Message], body: bytes) -> Message:
    try:
        return request_class.FromString(body)
    except DecodeError as error:
        raise InvalidArgumentError(f"malformed {request_class.__name__}: {error}") from None


# --- client side ---


class Caller:
    """Makes calls of one service over one channel. For one event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        service: ServiceDescriptor,
        job: str,
        secret: bytes,
        peer: str,
        on_clock: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """`peer` names the other side in messages, such as "scheduler 10.0.0.1:9000".

        `on_clock` gets, of each answered call, when it was sent, the other side's clock, when the answer came (ns).
        """
        self._on_clock = on_clock
        self._job, self._keys, self._peer = job, Keys.of(secret), peer
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
        body = request.SerializeToString()
        metadata, nonce = self._sign(name, body)
        sent = time.monotonic_ns()
        call = multicallable(body, timeout=timeout, metadata=metadata)
        try:
            answer = await call
            received = time.monotonic_ns()
            trailer = _as_dict(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            raise self._translate(name, nonce, error, timeout) from None
        except asyncio.CancelledError:
            raise _cut_off() from None
        self._check(name, nonce, trailer.get(PROOF), answer)
        theirs = trailer.get(CLOCK, "")
        if self._on_clock is not None and theirs.isdigit():
            self._on_clock(sent, int(theirs), received)
        return answer_class.FromString(answer)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        """The messages, until the other side ends the stream. Raises as `call` does."""
        multicallable, answer_class = self._methods[name]
        body = request.SerializeToString()
        metadata, nonce = self._sign(name, body)
        call = multicallable(body, metadata=metadata)
        try:
            initial = _as_dict(await call.initial_metadata())
            if PROOF in initial:
                self._check(name, nonce, initial[PROOF], b"")
            async for message in call:
                self._check(name, nonce, initial.get(PROOF), b"")
                yield answer_class.FromString(message)
        except grpc.aio.AioRpcError as error:
            raise self._translate(name, nonce, error, 0.0) from None
        except asyncio.CancelledError:
            raise _cut_off() from None
        finally:
            call.cancel()

    def _sign(self, name: str, body: bytes) -> tuple[Metadata, bytes]:
        proof, nonce = self._keys.sign(self._job, name, body)
        return ((JOB, self._job.encode()), (PROOF, proof)), nonce

    def _check(self, name: str, nonce: bytes, proof: bytes | None, body: bytes) -> None:
        if not self._keys.check_answer(proof, name, nonce, body):
            raise RefusedError(
                f"the {self._peer} did not prove that it knows the secret of job {self._job!r}: not ours",
                operation=name,
            )

    def _translate(self, name: str, nonce: bytes, error: grpc.aio.AioRpcError, timeout: float) -> Exception:
        trailer = _as_dict(error.trailing_metadata())
        if ERROR in trailer:
            self._check(name, nonce, trailer.get(PROOF), trailer[ERROR])
            return error_from_wire(types.Error.FromString(trailer[ERROR]))
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return RefusedError(f"the {self._peer} refused {name}: {details}", operation=name)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(f"the {self._peer} did not answer {name} within {timeout:.1f} s", operation=name)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return RefusedError(
                f"the {self._peer} is no byteps_like {self._peer.split()[0]}: {details}", operation=name
            )
        # grpc nests its reasons ("failed to connect to all addresses; last error: ...: Connection refused").
        return UnreachableError(details.rpartition(": ")[2].lower() or code.name.lower())


def _as_dict(metadata: Any) -> dict[str, Any]:
    """Pairs as a dict. `dict(metadata)` won't do: in some releases grpc's class has `keys` that are pairs."""
    return {key: value for key, value in metadata or ()}


def _cut_off() -> BaseException:
    """What a cancelled call means: its task was cancelled, or only its channel was closed under it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return UnreachableError("the connection was closed on this side")
