"""What runs in a simulation asks its seams for time, chance, threads and events, and nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SIMULATED = ("csrc/base", "csrc/wire", "csrc/codec", "csrc/transport", "csrc/engine", "compression", "collectives")
ALSO_SIMULATED = ("server", "csrc/sim")

BANNED = {
    "time: use Clock (csrc/base/clock.h)": (
        r"\b(?:steady|system|high_resolution)_clock\b|\bclock_gettime\b|\bgettimeofday\b|\btimerfd_create\b|::time\("
    ),
    "random numbers: use FillRandomly (csrc/base/entropy.h)": (
        r"\bRAND_bytes\b|\brandom_device\b|\bgetrandom\b|\bmt19937|\brand\(|/dev/u?random"
    ),
    "threads and waiting: use Thread, ConditionVariable, SleepFor (csrc/base/thread.h)": (
        r"\bstd::j?thread\b|\bstd::async\b|\bpthread_create\b|\bstd::condition_variable|_semaphore\b|\bthis_thread\b"
        r"|\bu?sleep\(|\bnanosleep\b|\bsched_yield\b|\bSYS_futex\b"
    ),
    "events of descriptors: use an EventLoop, or a Poller (csrc/transport/loop/poller.h)": (
        r"\bepoll_(?:create1?|wait|ctl)\b|\beventfd\(|::p?poll\(|::select\("
    ),
}

SEAMS = {
    "csrc/base/clock.h",
    "csrc/base/simulation.h",
    "csrc/base/entropy.cc",
    "csrc/base/thread.h",
    "csrc/base/thread.cc",
    "csrc/transport/loop/poller.cc",
}
NOT_SIMULATED = {
    "csrc/transport/chaos": "harms the links of real processes; a simulated network does so by itself",
    "csrc/transport/memory": "memory and sockets that processes of one host share",
    "csrc/transport/rdma": "devices, and their library's threads and descriptors",
    "csrc/transport/tcp": "sockets of the kernel",
    "collectives/host": "memory that ranks of one host share, and futexes in it",
}
"""Rooms whose subject is the system itself, and why none of it runs in a simulation."""


def _files() -> Iterator[tuple[str, str]]:
    for room in (*SIMULATED, *ALSO_SIMULATED):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _found(text: str) -> Iterator[tuple[int, str, str]]:
    """Lines, from 1, with what is banned, and what to use."""
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.split("//")[0]
        for use, pattern in BANNED.items():
            if not code.startswith("#include") and re.search(pattern, code):
                yield number, code.strip(), use


def _is_excused(path: str) -> bool:
    return path in SEAMS or any(path.startswith(room + "/") for room in NOT_SIMULATED)


def test_only_seams_ask_the_system():
    wrong = [
        f"{path}:{number}: {code}\n  {use}"
        for path, text in _files()
        if not _is_excused(path)
        for number, code, use in _found(text)
    ]
    assert not wrong, "a simulation can't decide this; " + "\n".join(wrong)


@pytest.mark.parametrize("room", sorted(SEAMS | NOT_SIMULATED.keys()))
def test_nobody_is_excused_without_need(room: str):
    inside = [text for path, text in _files() if path == room or path.startswith(room + "/")]
    assert any(list(_found(text)) for text in inside), f"take {room} out of the list"


def test_what_is_banned_is_found():
    for line in (
        "const auto now = std::chrono::steady_clock::now();",
        "std::thread worker([] {});",
        "RAND_bytes(bytes, 8);",
        "::epoll_wait(fd, events, 1, 0);",
        "std::this_thread::sleep_for(pause);",
    ):
        assert list(_found(line)), line
    for line in ("// as std::thread", "Clock::now() + pause", "StartThread(what, body);", "random_.Below(3)"):
        assert not list(_found(line)), line
