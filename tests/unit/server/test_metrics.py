"""Metrics: for this host unless asked otherwise, and never more threads than a few."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request

import pytest

from byteps_like.config import Config
from byteps_like.errors import SystemCallError
from byteps_like.server.metrics import MOST_THREADS, serve_metrics


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_they_are_this_hosts_own_by_default() -> None:
    port = free_port()
    stop = serve_metrics((Config().metrics_host, port), lambda: {"keys": 3.0, "payload_sent": 5.0}, {"rank": "0"})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'byteps_like_keys{rank="0"} 3.0' in text and 'byteps_like_payload_sent_total{rank="0"} 5.0' in text
        with socket.socket() as other:  # the port is free at other addresses of the host
            other.bind(("127.0.0.2", port))
        with pytest.raises(SystemCallError, match=f"port {port} of 127.0.0.1"):
            serve_metrics(("127.0.0.1", port), dict, {})
    finally:
        stop()


def test_strangers_that_say_nothing_hold_a_few_threads_at_most() -> None:
    port = free_port()
    stop = serve_metrics(("127.0.0.1", port), dict, {})
    before = threading.active_count()
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(50)]
    try:
        strangers[-1].recv(1)  # the last one was sent away, so all were looked at
        assert threading.active_count() <= before + MOST_THREADS
        for stranger in strangers:
            stranger.close()
        deadline = time.monotonic() + 10
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                assert time.monotonic() < deadline
    finally:
        stop()
