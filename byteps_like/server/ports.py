"""Where a server answers what is no link: at ports of their own, or all behind the port of its links."""

from __future__ import annotations

from byteps_like.config import Config
from byteps_like.control.calls.entrance import Entrance, SocketFolder, port_of
from byteps_like.control.hosts.address import join_address

_TCP = ("tcp://", "tls+tcp://")


class Ports:
    """A port for each: any free one for calls and for the door, `metrics_port` for metrics."""

    def __init__(self, config: Config, host: str) -> None:
        self._config, self._host = config, host

    def for_calls(self) -> tuple[str, int, Entrance | None]:
        """Where they come in, and what listens there already, as `AdminServer.start` takes it."""
        return self._host, 0, None

    def for_door(self) -> str:
        """Where it is to be bound, as `open_door` takes it."""
        return self._host

    def for_metrics(self) -> tuple[str, int] | str:
        """Where they are to be served, as `serve_metrics` takes it."""
        return self._config.metrics_host, self._config.metrics_port

    def share(self, kind: str) -> None:
        """This kind of connection is answered from now on."""

    def door_url(self, bound: str) -> str:
        """Where workers find the door."""
        return bound

    def close(self) -> None:
        """Once nobody answers any more."""


class OnePort(Ports):
    """All at the port of the links over TCP, whose entrance knows them by their first bytes."""

    def __init__(self, config: Config, host: str, entrance: Entrance, urls: tuple[str, ...]) -> None:
        super().__init__(config, host)
        port = next(port_of(url) for url in urls if url.startswith(_TCP))
        self._port, self._entrance, self._folder = port, entrance, SocketFolder()

    def for_calls(self) -> tuple[str, int, Entrance | None]:
        """The port itself."""
        return self._host, self._port, self._entrance

    def for_door(self) -> str:
        """A socket behind it."""
        return self._folder.path("door")

    def for_metrics(self) -> str:
        """A socket behind it."""
        return self._folder.path("metrics")

    def share(self, kind: str) -> None:
        """Its connections go to its socket from now on."""
        self._entrance.pass_on(kind, self._folder.path(kind))

    def door_url(self, bound: str) -> str:
        """The port itself."""
        del bound
        return f"tcp://{join_address(self._host, self._port)}"

    def close(self) -> None:
        """Removes the sockets."""
        self._folder.close()
