"""ZeRO++ for FSDP2 over our process groups: fewer bytes between hosts for `torch.distributed.fsdp.fully_shard`."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from byteps_like.errors import InvalidArgumentError

SMALLEST = 64 << 10


def ranks_per_host(group: Any = None) -> int | None:
    """Returns the number of ranks per host, for `fully_shard(reshard_after_forward=...)`.

    Backward then gathers weights from the ranks of its own host only (hpZ in ZeRO++). Returns None, FSDP2's own
    default, where that is not possible: with one host, one rank per host, hosts with different numbers of ranks, or
    ranks that are not numbered host by host. `group`: a process group of "byteps"; None takes the default group.

    Raises InvalidArgumentError for a group of another backend.
    """
    from byteps_like.torch.fsdp.hosts import even_hosts, ours  # need the native core

    return even_hosts(ours(dist.group.WORLD if group is None else group))


def compress_fsdp(
    module: nn.Module,
    *,
    weights: str | None = "int8",
    gradients: str | None = "int4",
    within: str | None = None,
    secondary: bool = False,
    smallest: int = SMALLEST,
) -> nn.Module:
    """Compresses what the FSDP2 modules in `module` send between hosts: gathered weights and scattered gradients.

        within = bps.ranks_per_host()
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=within)
        fully_shard(model)
        bps.compress_fsdp(model, weights="int8", gradients="int4", secondary=True)

    Call it with the same arguments on every rank, after `fully_shard` over process groups of "byteps" and before the
    first forward. Returns `module`. It sends nothing itself. The method is ZeRO++ (Wang et al., "ZeRO++: Extremely
    Efficient Collective Communication for Large Model Training", ICLR 2024); docs/how-to/fsdp-compression.md has the
    bytes on the wire and the traits of codecs.

    weights: codec for gathering parameters (qwZ), of trait OPAQUE or REENCODE, or a cast; None sends them uncompressed.
    gradients: codec for the second hop, between hosts, of the reduce-scatter (qgZ), of trait REENCODE. None keeps the
        plain reduce-scatter in one hop.
    within: codec for the first hop, within the host: None for uncompressed gradients, "bf16", or one of trait REENCODE.
    secondary: checks that backward's all-gather stays within the host (hpZ), which `reshard_after_forward` of
        `ranks_per_host()` provides. If it doesn't, the first backward raises InvalidArgumentError on every rank.
    smallest: in bytes. Modules whose parameters, or gradients, have fewer bytes in total send them uncompressed.

    float32, bfloat16 and float16 on the CPU are compressed, in any shape. Other dtypes and devices are not (a warning
    says so), nor are groups within one host or HSDP's all-reduce between replicas.

    Raises InvalidArgumentError for an unsuitable codec, a module without FSDP2 modules, or one whose parameters lie on
    several meshes. Later, forward raises it for groups of another backend, and MismatchError if the codecs of the ranks
    differ.
    """
    FSDPModule = _fsdp_module()
    # Need the native core.
    from byteps_like.torch.compression.slot_codec import SlotCodec, gradients_codec, lone_codec
    from byteps_like.torch.fsdp.collectives import CodedAllGather, TwoHopReduceScatter, install
    from byteps_like.torch.fsdp.secondary import Secondary

    encode = None if weights is None else lone_codec(weights, "weights")
    reduce = None if gradients is None else gradients_codec(gradients)
    inner = None if within in (None, "bf16") else gradients_codec(str(within), "within")
    found = [(name, each) for name, each in module.named_modules() if isinstance(each, FSDPModule)]
    if not found:
        raise InvalidArgumentError("compress_fsdp: there is no FSDP2 module: call fully_shard(module) before")
    for name, each in found:
        called, key = name or "the root module", _key(name)
        seen = Secondary(called, secondary)
        first = torch.bfloat16 if within == "bf16" else None if inner is None else SlotCodec(inner, key ^ _FIRST_HOP)
        forth, back = (None if codec is None else SlotCodec(codec, key) for codec in (encode, reduce))
        try:
            install(each, CodedAllGather(forth, smallest, seen), TwoHopReduceScatter(back, smallest, seen, first))
        except ValueError as error:
            raise InvalidArgumentError(f"compress_fsdp: {called}: {error}") from None
        if secondary:
            module.get_submodule(name).register_forward_pre_hook(seen.forward)
    return module


def _fsdp_module() -> Any:
    """FSDP2's class, if this torch has one that lets its collectives be replaced. Takes a second to import."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        FSDPModule = None  # type: ignore[assignment,misc]
    if hasattr(FSDPModule, "set_custom_all_gather") and hasattr(FSDPModule, "set_custom_reduce_scatter"):
        return FSDPModule
    raise InvalidArgumentError(
        f"compress_fsdp: FSDP2 of torch {torch.__version__} has no set_custom_all_gather and set_custom_reduce_scatter;"
        " torch 2.13 has"
    )


_FIRST_HOP = 1 << 60


def _key(name: str) -> int:
    """What the random numbers of a module derive from: its name, so that ranks need not agree on an order."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 4
