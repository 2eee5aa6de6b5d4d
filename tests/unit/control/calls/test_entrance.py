"""The port before Unix sockets: who is passed on where, and exactly how many may stay who have proven nothing."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from byteps_like import _core
from byteps_like.control.calls import entrance
from byteps_like.control.calls.entrance import SocketFolder, peer_name, port_of

SECRET = b"a secret of at least 32 characters, for tests"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ZMTP = b"\xff" + bytes(8) + b"\x7f"
SILENT_OF_ADDRESS, DESCRIPTORS, OF_A_GUEST = 16, 224, 3


class Room:
    """An entrance, and for each kind a socket behind it that keeps what comes."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self.entered: list[tuple[str, socket.socket, str]] = []
        self._sockets = []
        guests = {}
        for kind in kinds:
            listening = socket.socket(socket.AF_UNIX)
            guests[kind] = str(folder / kind)
            listening.bind(guests[kind])
            listening.listen(1024)
            self._sockets.append(listening)
            threading.Thread(target=self._accept, args=(kind, listening), daemon=True).start()
        self.core = _core.Entrance("tcp://0.0.0.0:0", "job", SECRET, guests)
        self.port = port_of(self.core.url)

    def _accept(self, kind: str, listening: socket.socket) -> None:
        while True:
            try:
                connection, name = listening.accept()
            except OSError:
                return
            self.entered.append((kind, connection, name.removeprefix(b"\0").decode()))

    def visit(self, said: bytes = b"", address: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection((address, self.port), timeout=10, source_address=(address, 0))
        connection.sendall(said)
        return connection

    def await_figures(self, **wanted: int) -> None:
        """Counters get there, and no further."""
        wait_for(lambda: {name: self.core.entrance()[name] for name in wanted} == wanted, self.core.entrance)

    def close(self) -> None:
        self.core.close()
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)
            each.close()


def all_of(connection: socket.socket, size: int) -> bytes:
    """So many bytes."""
    came = bytearray()
    while len(came) < size and (more := connection.recv(size - len(came))):
        came += more
    return bytes(came)


def wait_for(done: Callable[[], bool], show: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, show()
        time.sleep(0.005)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = SocketFolder()
    yield Path(made.path("x")).parent
    made.close()


@pytest.fixture
def room(folder: Path) -> Iterator[Room]:
    made = Room(folder, "calls", "metrics", "door")
    yield made
    made.close()


def addresses(count: int) -> list[str]:
    return [f"127.0.1.{number + 1}" for number in range(count)]


@pytest.mark.parametrize(("kind", "said"), [("calls", PREFACE), ("metrics", b"GET /metrics"), ("door", ZMTP)])
def test_connections_go_by_their_first_bytes(room: Room, kind: str, said: bytes) -> None:
    """Whole, also what came before it was clear where they belong; and answers come back."""
    with room.visit() as visitor:
        for byte in said:
            visitor.sendall(bytes([byte]))
        visitor.sendall(b"and more" * 100_000)
        wait_for(lambda: bool(room.entered), room.core.entrance)
        came, inside, name = room.entered[0]
        assert came == kind
        assert all_of(inside, len(said)) == said
        assert all_of(inside, 800_000) == b"and more" * 100_000
        assert room.core.visitor_of(name) == f"tcp 127.0.0.1:{visitor.getsockname()[1]}"
        threading.Thread(target=inside.sendall, args=(b"answered" * 100_000,), daemon=True).start()
        assert all_of(visitor, 800_000) == b"answered" * 100_000
    assert inside.recv(1) == b""  # the visitor's end is passed on, too
    wait_for(lambda: room.core.visitor_of(name) == "", room.core.entrance)


def test_the_last_words_of_who_answers_arrive(room: Room) -> None:
    with room.visit(PREFACE) as visitor:
        wait_for(lambda: bool(room.entered), room.core.entrance)
        inside = room.entered[0][1]
        threading.Thread(target=lambda: (inside.sendall(b"farewell" * 50_000), inside.close()), daemon=True).start()
        assert all_of(visitor, 400_000) == b"farewell" * 50_000
        assert visitor.recv(1) == b""


def test_tls_that_offers_http2_is_for_calls_and_other_tls_is_not(room: Room) -> None:
    for protocols, passed_on in ((["h2"], 1), (["http/1.1"], 1), ([], 1)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if protocols:
            context.set_alpn_protocols(protocols)
        with room.visit() as visitor:
            hello = ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
            visitor.sendall(hello.read())
            if protocols == ["h2"]:
                wait_for(lambda: bool(room.entered), room.core.entrance)
            else:
                assert visitor.recv(1) == b""
        room.await_figures(passed_on=passed_on)


def test_what_nobody_answers_here_is_refused_at_once(room: Room) -> None:
    for said in (b"BPLH", b"POST / HTTP/1.1\r\n", b"\x16\x03\x01\xff\xff", b"\0" * 100):
        with room.visit(said) as visitor:
            assert visitor.recv(1) == b""
    room.await_figures(connections=4, refused=4, passed_on=0)


def test_sixteen_of_an_address_may_be_silent_for_a_second(room: Room) -> None:
    visitors = [room.visit(b"PRI * " if number % 2 else b"") for number in range(100)]
    room.await_figures(connections=100, crowded_out=100 - SILENT_OF_ADDRESS)
    room.await_figures(late=SILENT_OF_ADDRESS)
    assert all(visitor.recv(1) == b"" for visitor in visitors)


def test_a_few_descriptors_are_for_the_unproven(room: Room) -> None:
    visitors = [room.visit(address=address) for address in addresses(40) for _ in range(10)]
    room.await_figures(connections=400, crowded_out=400 - DESCRIPTORS)
    for visitor in visitors:
        visitor.close()


def test_guests_count_until_they_are_proven(room: Room) -> None:
    """The first five have proven the secret and stay; of the others the oldest go."""
    proven = [room.visit(PREFACE) for _ in range(5)]
    wait_for(lambda: len(room.entered) == 5, room.core.entrance)
    for _, _, name in list(room.entered):
        room.core.prove(name)
    visitors = [room.visit(PREFACE, address) for address in addresses(40) for _ in range(3)]
    most = DESCRIPTORS // OF_A_GUEST
    room.await_figures(passed_on=5 + 120, crowded_out=120 - most)
    for visitor in visitors[: 120 - most]:
        assert visitor.recv(1) == b""
    for visitor in (*proven, *visitors[120 - most :]):
        visitor.setblocking(False)
        with pytest.raises(BlockingIOError):
            visitor.recv(1)
        visitor.close()


def test_the_door_proves_its_guests_by_what_it_says(room: Room) -> None:
    """A ROUTER with CURVE says more than greeting, WELCOME and ERROR to those alone whose key it admits."""
    talkers = [room.visit(ZMTP) for _ in range(2)]
    wait_for(lambda: len(room.entered) == 2, room.core.entrance)
    for (_, inside, _), size, visitor in zip(room.entered, (246, 247), talkers, strict=True):
        inside.sendall(b"x" * size)
        assert len(all_of(visitor, size)) == size
    most = DESCRIPTORS // OF_A_GUEST
    others = [room.visit(ZMTP, address) for address in addresses(most)]
    room.await_figures(passed_on=2 + most, crowded_out=1)
    assert talkers[0].recv(1) == b""
    for visitor in (*talkers, *others):
        visitor.close()


def test_nobody_behind_it_is_no_end_of_it(room: Room, folder: Path) -> None:
    room.core.pass_on("metrics", str(folder / "nobody"))
    with room.visit(b"GET / ") as visitor:
        assert visitor.recv(1) == b""
    with room.visit(PREFACE):
        room.await_figures(passed_on=1)


def test_peers_are_known_by_the_names_of_sockets() -> None:
    assert peer_name("unix-abstract:0a1b2") == "0a1b2"
    assert peer_name("ipv4:10.0.0.1:4711") == ""


@pytest.mark.processes
def test_folders_are_private_and_go_with_their_process() -> None:
    made = SocketFolder()
    folder = Path(made.path("x")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    code = "from byteps_like.control.calls.entrance import SocketFolder as F; print(F().path('x'), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip()).parent
        SocketFolder().close()
        assert left.exists()  # its process lives
        process.kill()
    SocketFolder().close()
    assert not left.exists() and folder.exists()
    made.close()
    made.close()
    assert not folder.exists()


def test_nobody_takes_a_folder_for_left_before_it_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def others_look_first(file: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            entrance._sweep(Path(tempfile.gettempdir()))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", others_look_first)
    made = SocketFolder()
    assert Path(made.path("lock")).exists()
    made.close()


def test_a_folder_that_is_just_being_made_is_left_alone() -> None:
    made = SocketFolder()
    parent = Path(made.path("x")).parent.parent
    young, old = (parent / f"byteps_like-port-{os.getpid()}-{name}" for name in ("young", "old"))
    for each in (young, old):
        each.mkdir()
    os.utime(old, (0, 0))
    SocketFolder().close()
    made.close()
    assert young.exists() and not old.exists()
    young.rmdir()
