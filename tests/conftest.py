"""For all tests: hypothesis measures no times, since a machine may be busy; pytest's own timeout ends what hangs, and
a watchdog outside of the process what doesn't let that happen.

With pytest-xdist (`-n 2 --dist loadfile`) the tests of a file stay in one process, and so do those of files that would
disturb one another, or that share processes.
"""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["tests.watchdog", "tests.processes"]

# Before NumPy or torch is imported, and for all processes of tests: the threads of their pools wait actively, which
# costs more than they compute of tensors as small as those of tests.
for library in ("OMP", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")

TOGETHER = {
    "c10d pool": (
        "multiprocess/c10d/test_c10d_suite_like.py",
        "multiprocess/c10d/test_fsdp_compression.py",
        "multiprocess/c10d/test_parallel_examples.py",
    ),
    "lab": ("lab/",),  # each lab removes what dead ones have left, of which there is a test
}
"""Group -> what the names of its files below tests/ begin with."""

FIRST = ("multiprocess/jobs/test_examples.py", "c10d pool", "multiprocess/jobs/test_torch_world.py")
"""The longest groups: none of them is left to one process alone at the end."""


def group_of(test: str) -> str:
    """The group of a test, by its node id."""
    name = test.partition("::")[0].removeprefix("tests/")
    return next((group for group, files in TOGETHER.items() if name.startswith(files)), name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first; else the order is that of the files."""
    places = {group: place for place, group in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(group_of(item.nodeid), len(places)))


def pytest_collection_finish() -> None:
    """What has been imported stays: the collector needn't look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _no_descriptors_are_left() -> Iterator[None]:
    """A job that has ended in this process is in cycles, and holds some fifty descriptors until they are collected."""
    yield
    gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of pytest-xdist: hands out groups. Its own groups, by marks, are not heeded by every version of pytest."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Groups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)
