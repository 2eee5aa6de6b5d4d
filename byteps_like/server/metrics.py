"""Counters of a member for Prometheus, on a port of their own; only where `metrics_port` is set.

Whoever reaches the port may read them: it is one of this host only, unless `metrics_host` says otherwise.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from typing_extensions import override

from byteps_like.errors import SystemCallError
from byteps_like.server.figures import KeptFigures
from byteps_like.timeline.records import AWAITED

Kept = Callable[[], Mapping[int, KeptFigures]]
MOST_THREADS = 8
"""Readers at a time."""

_GAUGES = frozenset(("memory", "keys", "open_rounds", "links"))
_FIGURES = "compression_"  # how names of what codecs do to gradients begin: gauges, too


class _Collector:
    def __init__(self, counters: Callable[[], Mapping[str, float]], labels: Mapping[str, str]) -> None:
        self._counters, self._labels = counters, labels

    def collect(self) -> Iterator[Metric]:
        """Reads the counters when Prometheus asks."""
        for name, value in self._counters().items():
            is_gauge = name in _GAUGES or name.startswith(_FIGURES)
            family = GaugeMetricFamily if is_gauge else CounterMetricFamily
            metric = family(f"byteps_like_{name}", f"{name} of this member", labels=list(self._labels))
            metric.add_metric(list(self._labels.values()), value)
            yield metric


class _KeptCollector:
    """Of the tensors that a server keeps: labels `tensor`, its id, and `worker`, the rank that has contributed."""

    def __init__(self, kept: Kept, labels: Mapping[str, str]) -> None:
        self._kept, self._labels = kept, labels

    def collect(self) -> Iterator[Metric]:
        """Reads them when Prometheus asks."""
        labels = [*self._labels, "tensor", "worker"]
        clock = GaugeMetricFamily(
            "byteps_like_kept_clock", "contributions that are settled, by partition", labels=labels
        )
        oldest = GaugeMetricFamily(
            "byteps_like_kept_oldest", "greatest age of what counted, in versions", labels=labels
        )
        ages = CounterMetricFamily("byteps_like_kept_ages", "ages of what counted, added up", labels=labels)
        held = CounterMetricFamily("byteps_like_kept_held", "contributions that had to wait", labels=labels)
        settled = CounterMetricFamily(
            "byteps_like_kept_contributions", "contributions, by what became of them", labels=[*labels, "outcome"]
        )
        waited, awaited = (
            CounterMetricFamily(f"byteps_like_kept_{name}_seconds", what, labels=[*labels, "cause"])
            for name, what in (("waited", "that the worker has waited"), ("awaited", "that others have waited for it"))
        )
        for tensor, figures in self._kept().items():
            for rank, one in enumerate(figures.ranks):
                own = [*self._labels.values(), str(tensor), str(rank)]
                for family, value in ((clock, one.clock), (oldest, one.oldest), (ages, one.ages), (held, one.held)):
                    family.add_metric(own, value)
                for outcome in ("counted", "late", "not_finite"):
                    settled.add_metric([*own, outcome], getattr(one, outcome))
                for cause, *seconds in zip(AWAITED, one.waited, one.awaited, strict=True):
                    waited.add_metric([*own, cause], seconds[0])
                    awaited.add_metric([*own, cause], seconds[1])
        yield from (clock, settled, held, ages, oldest, waited, awaited)


class _Handler(WSGIRequestHandler):
    timeout = 5.0  # for a reader that says nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: Prometheus asks again and again."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per request; whoever comes while all are busy is sent away."""

    daemon_threads = True

    request_queue_size = 64

    def __init__(self, address: tuple[str, int] | str) -> None:
        if isinstance(address, str):
            self.address_family = socket.AF_UNIX
        else:
            self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_THREADS)
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    @override
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks for the host's name
        self.server_name, self.server_port = "byteps_like", 0
        self.setup_environ()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address or ("", 0))
        else:
            self.shutdown_request(request)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


def serve_metrics(
    address: tuple[str, int] | str,
    counters: Callable[[], Mapping[str, float]],
    labels: Mapping[str, str],
    kept: Kept | None = None,
) -> Callable[[], None]:
    """Answers at `address`, a host and a port or the path of a Unix socket, from daemon threads; returns what stops it.
    `kept`: of a server, what it keeps, by tensor id. Raises SystemCallError if the address is taken."""
    registry = CollectorRegistry()
    registry.register(_Collector(counters, labels))
    if kept is not None:
        registry.register(_KeptCollector(kept, labels))
    try:
        server = _Server(address)
    except OSError as error:
        where = address if isinstance(address, str) else f"port {address[1]} of {address[0]}"
        raise SystemCallError(f"can't serve metrics on {where}: {error.strerror}") from error
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="byteps-like-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
