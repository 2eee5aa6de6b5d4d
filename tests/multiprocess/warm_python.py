"""A `python` whose scripts have torch and byteps_like imported from the start.

It goes where `sys.executable` would: into subprocess, `byteps-like run`, torchrun. Its command is this file, which asks
a server for a fork of itself that runs the script with the arguments, environment, folder and standard streams of the
command. The script lasts as long as the command, is sent the signals that the
command is sent, and ends it with its own exit status. A fork costs 20 ms of processor time, where a new process costs
2 to 6 s.

The script's process is not a child of who started the command, and imports nothing of torch anew. So this is not for
tests of who ends, stops or inherits what, nor of what happens as modules are imported or the interpreter ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SIZE = 8  # bytes of a number on the line


# The command: nothing but the standard library, and little of that --------------------------------------------------


def ask(address: str, arguments: list[str]) -> int:
    """Runs a script on the server at `address`: its exit status, negative for a signal, as subprocess has it."""
    request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(address)
            for number in FORWARDED:
                signal.signal(number, lambda caught, _: line.send(caught.to_bytes(1, "big")))
            socket.send_fds(line, [len(request).to_bytes(SIZE, "big")], [0, 1, 2])
            line.sendall(request)
            status = line.recv(SIZE)
        except OSError as error:
            sys.exit(f"the server of warm_python.py at {address} can't be reached: {error}")
    if not status:
        sys.exit(f"the server of warm_python.py at {address} has died while it ran {arguments}")
    return int.from_bytes(status, "big", signed=True)


def end_as(status: int) -> None:
    """Ends this process by an exit status or a signal."""
    if status >= 0:
        os._exit(status)
    with suppress(OSError):  # SIGKILL
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    end_as(ask(sys.argv[1], sys.argv[2:]))


# The server, in a process forked from one that has imported all -----------------------------------------------------


class WarmPython:
    """The server, seen from the tests; `command` goes where `sys.executable` would."""

    def __init__(self) -> None:
        import tempfile

        from tests.multiprocess import warm

        self._folder = tempfile.TemporaryDirectory()
        address = f"{self._folder.name}/warm"
        context = warm.context()
        self._alive, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(address, theirs), daemon=True)
        self.process.start()
        theirs.close()
        assert self._alive.poll(90.0), "no torch within 90 s"
        threads = self._alive.recv()
        assert threads == 1, (
            f"{threads} threads where processes are forked: a lock may be held for ever in their children"
        )
        self.command = [sys.executable, "-I", "-S", __file__, address]

    def close(self) -> None:
        """Ends the server, and with it all that it runs."""
        self.process.kill()
        self.process.join()
        self._folder.cleanup()


def _serve(address: str, alive: Any) -> None:
    server = _Server(address)
    alive.send(len(os.listdir(f"/proc/{os.getppid()}/task")))  # noqa: PTH208
    server.run(alive)


class _Server:
    """One thread that waits for new commands, for what they say, and for the ends of scripts."""

    def __init__(self, address: str) -> None:
        import selectors

        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._ready = selectors.DefaultSelector()
        self._lines: dict[socket.socket, int] = {}  # -> process

    def run(self, alive: Any) -> None:
        """Until `alive` says that the tests have ended."""
        import selectors

        self._ready.register(self._listener, selectors.EVENT_READ, self._begin)
        self._ready.register(alive, selectors.EVENT_READ, sys.exit)
        while True:
            for key, _ in self._ready.select():
                key.data()

    def _begin(self) -> None:
        import selectors

        line, _ = self._listener.accept()
        size, streams, _, _ = socket.recv_fds(line, SIZE, 3)
        request = line.makefile("rb").read(int.from_bytes(size, "big"))
        process = os.fork()
        if not process:
            self._leave(line)
            _run(streams, *json.loads(request))
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(process)
        self._lines[line] = process
        self._ready.register(line, selectors.EVENT_READ, lambda: self._signal(line))
        self._ready.register(ended, selectors.EVENT_READ, lambda: self._end(line, ended))

    def _leave(self, line: socket.socket) -> None:
        """In the child: nothing stays open that tells others of an end."""
        self._ready.close()
        for each in (self._listener, line, *self._lines):
            each.close()

    def _signal(self, line: socket.socket) -> None:
        numbers = line.recv(SIZE)
        for number in numbers or [signal.SIGKILL]:  # a command that has been killed says nothing more
            os.kill(self._lines[line], number)
        if not numbers:
            self._ready.unregister(line)

    def _end(self, line: socket.socket, ended: int) -> None:
        self._ready.unregister(ended)
        os.close(ended)
        with suppress(KeyError):
            self._ready.unregister(line)
        _, status = os.waitpid(self._lines.pop(line), 0)
        with suppress(OSError), line:
            line.sendall(os.waitstatus_to_exitcode(status).to_bytes(SIZE, "big", signed=True))


# The script's process -----------------------------------------------------------------------------------------------


def _run(streams: list[int], arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Does not return."""
    import atexit
    import threading

    status = 1
    try:
        _settle(streams, environment, folder)
        status = _outcome(arguments)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _settle(streams: list[int], environment: dict[str, str], folder: str) -> None:
    """Takes the command's place: its streams, environment and folder; a session of its own; ends with the server."""
    import ctypes
    import tempfile

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # as the environment says
    os.chdir(folder)


def _outcome(arguments: list[str]) -> int:
    """The exit status of a script."""
    try:
        _execute(arguments)
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code & 0xFF
        if end.code is not None:
            print(end.code, file=sys.stderr)
        return end.code is not None
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _execute(arguments: list[str]) -> None:
    """`-m MODULE`, `-c TEXT` or a file, and arguments, as `python` takes them."""
    import runpy
    import types
    from pathlib import Path

    first, *rest = arguments
    paths = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    paths += [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    if first == "-m":
        sys.argv, sys.path[:] = rest, [str(Path.cwd()), *paths]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    is_text = first == "-c"
    sys.argv, sys.path[:] = (
        (["-c", *rest[1:]], ["", *paths]) if is_text else (arguments, [str(Path(first).parent), *paths])
    )
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = None if is_text else first
    exec(compile(rest[0] if is_text else Path(first).read_text(), "<string>" if is_text else first, "exec"), vars(main))
