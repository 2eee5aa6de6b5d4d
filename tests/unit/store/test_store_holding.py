"""Memory of operations in flight."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np

from byteps_like.store.memory.holding import Holding


class Flight:
    """An operation that is over when it is told so."""

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        return self.over

    def wait(self, timeout: float | None = None) -> None:
        raise NotImplementedError

    def outcomes(self) -> list[object]:
        raise NotImplementedError


def test_memory_stays_as_long_as_its_operation_is_in_flight():
    held, flights = Holding(), [Flight() for _ in range(20)]
    arrays = [np.zeros(3) for _ in flights]
    alive = [weakref.ref(array) for array in arrays]
    for flight, array in zip(flights, arrays, strict=True):
        held.hold(flight, array)
    del array
    arrays.clear()
    gc.collect()
    assert len(held) == 20 and all(one() is not None for one in alive)
    flights[7].over = True
    held.let_go(flights[7])
    held.let_go(flights[7])
    assert alive[7]() is None and len(held) == 19


def test_what_nobody_waits_for_is_let_go_by_later_operations():
    held, slow = Holding(), Flight()
    held.hold(slow, np.zeros(1))
    for _ in range(1000):
        flight = Flight()
        held.hold(flight, np.zeros(1))
        flight.over = True
    assert len(held) <= 4
    slow.over = True
    for _ in range(4):
        held.hold(slow, np.zeros(1))
    assert len(held) == 0


def test_threads_may_hold_at_once():
    held = Holding()

    def work() -> None:
        for number in range(500):
            flight = Flight()
            held.hold(flight, np.zeros(1))
            flight.over = True
            if number % 2:
                held.let_go(flight)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) <= 8
