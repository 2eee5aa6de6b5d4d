"""By which of two the ranks of one host reduce on their devices: torch's NCCL, or CUDA IPC.

NCCL where torch has it and each rank has a device of its own; CUDA IPC (peers_ipc) where ranks share a device,
which NCCL refuses, or where there is no NCCL. The ranks of a host exchange what they have, once, so all choose alike.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from byteps_like.collectives.api import Group
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device.api import Device
from byteps_like.torch.local.peers import LocalPeers, exchange
from byteps_like.torch.local.peers_ipc import IpcPeers, why_not
from byteps_like.torch.local.peers_nccl import GroupPeers

logger = logging.getLogger(__name__)

WANTED = ("auto", "nccl", "ipc", "gloo")
"""What a user may ask for; "gloo" is for tests, where there is no device."""
AUTO_IPC = "auto-ipc"
"""CUDA IPC where that can be, else nothing."""


@dataclass(frozen=True)
class PeerMeans:
    """What one rank has. `uuid`: its device's, "" if unknown. `no_ipc`: why it can't map others' memory, "" if so.
    `pci`: the address of its device's card, which instances of one (MIG) have in common."""

    uuid: str
    nccl: bool
    no_ipc: str
    pci: str = ""


def choose(wanted: str, found: Sequence[PeerMeans]) -> tuple[str, str]:
    """Which it is, and why, from what all ranks of a host have; "" where there is none.

    Raises InvalidArgumentError for a name that is none of WANTED, or that was asked for and can't be.
    """
    if wanted not in (*WANTED, AUTO_IPC):
        raise InvalidArgumentError(f"local={{'cuda': {wanted!r}}} is none of {', '.join(WANTED)}")
    apart = _instances(found)
    no_ipc = apart or next((f"local rank {rank}: {one.no_ipc}" for rank, one in enumerate(found) if one.no_ipc), "")
    if wanted == "ipc" and no_ipc:
        raise InvalidArgumentError(f"local={{'cuda': 'ipc'}} is not available: {no_ipc}")
    if wanted == AUTO_IPC:
        return (
            ("", f"CUDA IPC is not available: {no_ipc}")
            if no_ipc
            else ("ipc", "gradients are reduced only by CUDA IPC")
        )
    if wanted != "auto":
        return wanted, "it was asked for"
    if apart:
        return "", f"{apart}, and NCCL refuses them"
    uuids = [one.uuid for one in found if one.uuid]
    if len(set(uuids)) < len(uuids):
        why = "ranks share a device, which NCCL refuses"
    elif not all(one.nccl for one in found):
        why = "torch has no NCCL"
    else:
        return "nccl", "each rank has a device of its own"
    return ("ipc", why) if not no_ipc else ("", f"{why}, and CUDA IPC is not available: {no_ipc}")


def _instances(found: Sequence[PeerMeans]) -> str:
    """Why ranks can't map each other's memory although each has a device of its own: those may be parts of one card."""
    cards: dict[str, str] = {}
    for one in found:
        if one.pci and cards.setdefault(one.pci, one.uuid) != one.uuid:
            return f"ranks have MIG instances of one GPU ({one.pci}), which can't map each other's memory"
    return ""


def make_peers(wanted: str, device: Device, lane: Group, make_group: Any, timeout: float) -> LocalPeers | None:
    """Those of the ranks of `lane`, all of one host; None, and the log says why, where there are none.

    `make_group(name)` gives torch's backend of that name among them. All ranks make the call. Blocks until they have.
    Raises InvalidArgumentError as `choose` does.
    """
    gpu = device.native()
    uuid, pci = ("", "") if gpu is None else (gpu.uuid, gpu.pci)
    means = PeerMeans(uuid, dist.is_nccl_available(), why_not(device, lane.size), pci)
    name, why = choose(wanted, [PeerMeans(**record) for record in exchange(lane, vars(means))])
    made: LocalPeers | None = None
    if name == "ipc":
        made, failed = IpcPeers.make(device, lane, timeout)
        if failed and wanted == "ipc":
            raise InvalidArgumentError(f"local={{'cuda': 'ipc'}} is not available: {failed}")
        why = f"{why}, and CUDA IPC is not available: {failed}" if failed else why
    elif name:
        made = GroupPeers(name, make_group(name), lane)
    reached = f"reduce among themselves by {made.name}" if made is not None else "each send all of their tensors"
    logger.info("%s: the %d ranks of this host %s, because %s", device.name, lane.size, reached, why)
    return made
