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
    """What to give `fully_shard` as `reshard_after_forward` so that backward gathers weights within the host (hpZ).

    None, FSDP2's own default, where that can't be: one host, one rank per host, hosts with different numbers of ranks,
    or ranks that are not numbered host by host. `group`: a process group of "byteps"; default: the world's. Raises
    InvalidArgumentError for one of another backend.
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
    """Makes all FSDP2 modules in `module`, sharded over process groups of "byteps", encode what goes between hosts.

        within = bps.ranks_per_host()
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=within)
        fully_shard(model)
        bps.compress_fsdp(model, weights="int8", gradients="int4", secondary=True)

    Call it once on every rank alike, after `fully_shard` and before the first forward. Returns `module`.

    weights: the codec in which parameters are gathered (qwZ), of trait OPAQUE or REENCODE, or a cast; None: raw.
    gradients: the codec of the reduce-scatter's second hop, between hosts (qgZ), of trait REENCODE; None: no two hops.
    within: the first hop, in the host: None (gradients as they are), "bf16", or a codec of trait REENCODE.
    secondary: backward's all-gather is to stay in the host (hpZ); see `ranks_per_host`. FSDP2 has the means, and this
        checks that it uses them: the first backward that doesn't raises InvalidArgumentError, on every rank.
    smallest: bytes of a module's whole parameters, or gradients, below which they travel as they are.

    float32, bfloat16 and float16 on the CPU are encoded; those of other types or devices (a warning says so),
    groups within one host, and HSDP's all-reduce between replicas are not. Within a host all is as it was. Raises
    InvalidArgumentError for a codec that can't do it, a module without FSDP2 modules, or one with parameters on several
    meshes; later, from forward, for groups of another backend, and MismatchError where ranks disagree on a codec.
    Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Large Model Training" (ICLR 2024).
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
