"""Counters of a member for Prometheus, on a port of their own; only where `metrics_port` is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from byteps_like.errors import SystemCallError

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


def serve_metrics(
    port: int, counters: Callable[[], Mapping[str, float]], labels: Mapping[str, str]
) -> Callable[[], None]:
    """Answers on `port` from a daemon thread; returns what stops it. Raises SystemCallError if the port is taken."""
    registry = CollectorRegistry()
    registry.register(_Collector(counters, labels))
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise SystemCallError(f"can't serve metrics on port {port}: {error.strerror}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
