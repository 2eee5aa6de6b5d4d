"""Memory and descriptors of a process that takes more and more of them, and of one that does not live for long."""

from __future__ import annotations

import mmap
import os

from byteps_like.launch.chaos.growth import SETTLED, WATCHED, GrowthWatch


def touched(size: int) -> mmap.mmap:
    """`size` bytes of memory of their own, not of the heap, which may keep what others gave back."""
    memory = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        memory[page] = 1
    return memory


def test_what_comes_after_the_first_minutes_counts() -> None:
    watch, own = GrowthWatch(), os.getpid()
    watch.began(own, "worker 0", 0.0)
    early = touched(8 << 20)
    watch.look([own], SETTLED - 1)
    assert not watch.is_known(own, SETTLED + WATCHED), "nothing was seen so far"
    watch.look([own], SETTLED)
    assert watch.found() == [] and not watch.is_known(own, SETTLED + WATCHED - 1)
    late = touched(24 << 20)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    try:
        watch.look([own], SETTLED + WATCHED)
    finally:
        for one in opened:
            os.close(one)
    (found,) = watch.found()
    assert (found.name, found.seconds, found.descriptors) == ("worker 0", WATCHED, 7)
    assert 20 << 20 < found.memory < 40 << 20
    assert watch.is_known(own, SETTLED + WATCHED)
    watch.ended(own)
    assert watch.found() == [found], "also when it is gone"
    assert len(early) + len(late) == 32 << 20


def test_who_is_gone_too_soon_is_forgotten() -> None:
    watch, own = GrowthWatch(), os.getpid()
    watch.began(own, "server 0", 0.0)
    watch.look([own], SETTLED)
    watch.look([own], SETTLED + WATCHED - 1)
    watch.ended(own)
    assert watch.found() == [] and watch.is_known(own, 1e9)
