"""Worlds of communicators without torch: as threads of one process, and as forked processes."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from byteps_like.collectives.communicator import Communicator, Peer
from byteps_like.config import Config
from byteps_like.errors import BytePSLikeError

SECRET = bytes(range(32))
DEADLINE = 60.0
Body = Callable[..., Any]


def settings(transport: str, **more: Any) -> Config:
    """Of a member on loopback."""
    return Config.from_env({}, transport=transport, host="127.0.0.1", **more)


def member(config: Config, job: str, rank: int, hosts: Sequence[int]) -> Communicator:
    """One that listens, as if on host number `hosts[rank]`; all are on one if there are none."""
    made = Communicator(config, job, SECRET)
    if hosts:
        made.own = replace(made.own, host_id=f"{made.own.host_id}/{hosts[rank]}")
    return made


class Threads:
    """`size` communicators in this process."""

    def __init__(self, size: int, transport: str, hosts: Sequence[int] = ()) -> None:
        job = f"threads-{secrets.token_hex(4)}"
        self.members = [member(settings(transport), job, rank, hosts) for rank in range(size)]
        peers = [one.own for one in self.members]
        for rank, one in enumerate(self.members):
            one.join(1, rank, peers)

    def __enter__(self) -> Threads:
        return self

    def run(self, body: Body, *args: Any) -> list[Any]:
        """`body(communicator, *args)` on a thread for each: the results, or an AssertionError with all that failed."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            flights = [pool.submit(body, one, *args) for one in self.members]
            errors = [f"--- rank {rank} ---\n{flight.exception()}" for rank, flight in enumerate(flights)
                      if flight.exception() is not None]  # fmt: skip
        assert not errors, "\n".join(errors)
        return [flight.result() for flight in flights]

    def __exit__(self, *_: object) -> None:
        closers = [threading.Thread(target=one.close) for one in self.members]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


class Forked:
    """`size` processes, forked from this one: start it before any thread of ours runs, or from a clean parent."""

    def __init__(self, size: int, transport: str, hosts: Sequence[int] = (), *, shared: Any = None) -> None:
        """`shared`: what bodies get for the argument "shared": a multiprocessing.Array."""
        context = multiprocessing.get_context("fork")
        self.shared = shared
        job = f"forked-{secrets.token_hex(4)}"
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            kept, place = [*self.pipes, ours], (transport, job, rank, hosts)
            process = context.Process(target=_serve, args=(theirs, kept, place, shared), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        peers = [self.answer(rank)[1] for rank in range(size)]
        for pipe in self.pipes:
            pipe.send(peers)

    def __enter__(self) -> Forked:
        return self

    def begin(self, body: Body, *args: Any) -> None:
        """Starts `body(communicator, *args)` on every rank."""
        for pipe in self.pipes:
            pipe.send((body, args))

    def answer(self, rank: int, seconds: float = DEADLINE) -> tuple[bool, Any]:
        """(True, result) or (False, traceback) of that rank."""
        if not self.pipes[rank].poll(seconds):
            return False, f"rank {rank}: no answer within {seconds:.0f} s"
        try:
            answer: tuple[bool, Any] = self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            return False, f"rank {rank}: the process died"
        return answer

    def run(self, body: Body, *args: Any) -> list[Any]:
        """The results of all, or an AssertionError with all that failed."""
        self.begin(body, *args)
        answers = [self.answer(rank) for rank in range(len(self.pipes))]
        errors = [f"--- rank {rank} ---\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        assert not errors, "\n".join(errors)
        return [result for _, result in answers]

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, others: list[Connection], place: tuple[str, str, int, Sequence[int]], shared: Any) -> None:
    for other in others:
        other.close()  # else nobody's end would be seen
    transport, job, rank, hosts = place
    one = member(settings(transport), job, rank, hosts)
    pipe.send((True, one.own))
    peers: list[Peer] = pipe.recv()
    one.join(1, rank, peers)
    while True:
        try:
            body, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, body(one, *[shared if value == "shared" else value for value in args])))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            pipe.send((False, traceback.format_exc()))


def seen(call: Callable[[], Any]) -> tuple[str, str, float]:
    """Name of the error that `call` raised ("" for none), its message, and the seconds it took."""
    began = time.monotonic()
    try:
        call()
    except BytePSLikeError as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began
