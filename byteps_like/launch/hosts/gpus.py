"""GPUs of this host as the kernel shows them, and the cores beside each: for placing workers, and rows of doctor.

No driver is called: a launcher that starts CUDA would keep memory on every device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from byteps_like.launch.hosts.host import Finding, Grade, judged, read_text

_KNOWN = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/sys/bus/pci/devices")
_LARGEST_LIST = 1 << 16


@dataclass(frozen=True)
class Gpu:
    """One GPU: its PCI address, model, NUMA node (-1: the host has but one, or doesn't say), the cores beside it."""

    pci: str
    model: str
    node: int
    cores: frozenset[int]
    link: str
    """Speed and width of its PCIe link; "" if it isn't told."""
    uuid: str = ""
    """As nvidia-smi has it: "GPU-8932f937-..."; "" if it isn't told."""


def cards(known: Path = _KNOWN, devices: Path = _DEVICES) -> list[Gpu]:
    """All that the driver knows, by PCI address: the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, and of equal models."""
    found = sorted(entry.name for entry in known.iterdir()) if known.is_dir() else []
    return [_card(known / name, devices / name.lower()) for name in found]


def _card(known: Path, device: Path) -> Gpu:
    fields = dict(line.split(":", 1) for line in read_text(known / "information").splitlines() if ":" in line)
    speed, width = read_text(device / "current_link_speed"), read_text(device / "current_link_width")
    node = read_text(device / "numa_node", "-1")
    return Gpu(
        known.name, fields.get("Model", "GPU").strip(), int(node), parse_cores(read_text(device / "local_cpulist")),
        f"{speed} x{width}" if speed and width else "", fields.get("GPU UUID", "").strip(),
    )  # fmt: skip


def parse_cores(text: str) -> frozenset[int]:
    """The kernel's "0-3,8" as numbers. Raises ValueError for what is no such list."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if len(span) > _LARGEST_LIST:
            raise ValueError(f"{text!r} is not a list of cores")
        cores.update(span)
    return frozenset(cores)


def visible(found: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Those of CUDA_VISIBLE_DEVICES, in its order: by number or UUID, of which the beginning will do, up to the first
    that there isn't. None where it names parts of a GPU whose own name they don't tell (MIG)."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    cards: list[Gpu] = []
    for item in chosen.split(","):
        named = _named(item.strip().removeprefix("MIG-" if "MIG-GPU-" in item else "").partition("/")[0], found)
        if len(named) != 1:
            break
        cards += named
    return cards


def _named(name: str, found: list[Gpu]) -> list[Gpu]:
    if name.isdigit():
        return found[int(name) : int(name) + 1]
    return [card for card in found if name.startswith("GPU-") and card.uuid.startswith(name)]


def cores_for(local_rank: int, found: list[Gpu], allowed: frozenset[int]) -> frozenset[int]:
    """The cores beside the GPU of a worker, those of GPU local_rank mod their number; empty: it stays where it is.

    It stays where the host has one NUMA node only, and where none of these cores is `allowed`.
    """
    if not found:
        return frozenset()
    card = found[local_rank % len(found)]
    cores = card.cores & allowed
    return cores if card.node >= 0 and cores != allowed else frozenset()


def rows() -> Iterable[Finding]:
    """Each GPU, and where its workers run."""
    allowed = frozenset(os.sched_getaffinity(0))
    found = visible(cards(), os.environ)
    for number, card in enumerate(found):
        cores = cores_for(number, found, allowed)
        place = f"NUMA node {card.node}, workers on {len(cores)} cores beside it" if cores else "workers on any core"
        text = ", ".join(filter(None, (card.model, card.pci, f"PCIe {card.link}" if card.link else "", place)))
        fix = "none of the cores beside it may be used here: see taskset, or the container's cpuset"
        yield judged(f"GPU {number}", not card.cores or bool(card.cores & allowed), text, fix)
    if not found and os.environ.get("CUDA_VISIBLE_DEVICES") and cards():
        yield Finding("GPUs", Grade.OK, "CUDA_VISIBLE_DEVICES names none of these GPUs: workers run on any core")


ROWS: tuple[Callable[[], Finding | Iterable[Finding]], ...] = (rows,)
