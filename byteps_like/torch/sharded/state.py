"""Optimizer state between shards and the plain optimizer's form: whole tensors per parameter, in any world size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.sharded.arena import ShardArena
from byteps_like.torch.sharded.chunk import ShardChunk
from byteps_like.torch.sharded.gradient import ShardSlot
from byteps_like.torch.sharded.layout import ShardLayout, Stretches
from byteps_like.torch.sharded.update import State

Exchange = Callable[[Any], list[Any]]
"""The objects of all ranks, for each rank's own."""

_Entry = tuple[bool, Any]
"""Of one key of a slice's state: (True, dtype) where it has an element per element, else (False, the value itself)."""


Known = dict[int, dict[str, _Entry]]
"""The same of parameters, by the numbers of their slots."""


def state_bytes(state: State) -> int:
    """Bytes of all tensors in `state`."""
    tensors = (value for entries in state.values() for value in entries.values() if isinstance(value, torch.Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gathered(arenas: Sequence[ShardArena], state: State, exchange: Exchange) -> State:
    """The state of whole parameters, on every rank. All ranks must call it; blocks.

    On the wire: the state's bytes, by one all-gather per chunk and key, and what `exchange` takes for the keys.
    Raises InvalidArgumentError for state that is neither a value per element nor one per parameter.
    """
    found: State = {}
    for arena, known in zip(arenas, described(arenas, state, exchange), strict=True):
        found |= _gathered_arena(arena, state, known)
    return found


def described(arenas: Sequence[ShardArena], state: State, exchange: Exchange) -> list[Known]:
    """What state the parameters of each arena have on any rank; the same on all ranks, which must all call it.

    Raises InvalidArgumentError, on all ranks, for state that is neither a value per element nor one per parameter.
    """
    own: list[Known] | str
    try:
        own = [_described(arena.slots, arena.chunks, state) for arena in arenas]
    except InvalidArgumentError as error:
        own = str(error)
    everyone = exchange(own)
    for wrong in (theirs for theirs in everyone if isinstance(theirs, str)):
        raise InvalidArgumentError(wrong)
    known: list[Known] = [{} for _ in arenas]
    for theirs in everyone:
        for found, entries in zip(known, theirs, strict=True):
            found |= {slot: entry for slot, entry in entries.items() if slot not in found}
    return known


def _described(slots: Sequence[ShardSlot], chunks: Sequence[ShardChunk], state: State) -> Known:
    found: Known = {}
    for chunk in chunks:
        for slot, piece in chunk.slices.items():
            if piece in state and slot not in found:
                name = slots[slot].name
                found[slot] = {key: _entry(name, key, value, piece) for key, value in state[piece].items()}
    return found


def _entry(name: str, key: str, value: Any, piece: torch.Tensor) -> _Entry:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False, value.clone() if isinstance(value, torch.Tensor) else value
    if value.shape != piece.shape:
        raise InvalidArgumentError(
            f"the optimizer's state {key!r} of {name!r} has the shape {tuple(value.shape)} for {piece.numel()}"
            " elements: shard='optimizer' needs a value per element, or one per parameter"
        )
    return True, value.dtype


def _gathered_arena(arena: ShardArena, state: State, known: Known) -> State:
    found: State = {arena.slots[slot].parameter: {} for slot in known}
    for slot, entries in known.items():
        for key, (_, value) in entries.items():
            found[arena.slots[slot].parameter][key] = value  # also keeps the keys' order
    fields = {
        (key, value) for entries in known.values() for key, (elementwise, value) in entries.items() if elementwise
    }
    for key, dtype in sorted(fields, key=repr):
        buffer = _gathered_field(arena, state, key, dtype)
        for slot, entries in known.items():
            if entries.get(key) == (True, dtype):
                found[arena.slots[slot].parameter][key] = _whole(arena.slots[slot], buffer, arena.layout.offsets[slot])
    return found


def _gathered_field(arena: ShardArena, state: State, key: str, dtype: torch.dtype) -> torch.Tensor:
    """The values of one key, laid out as the arena's parameters are."""
    buffer = torch.zeros(max(arena.layout.total, 1), dtype=dtype, device="cpu")
    size, options = buffer.element_size(), CallOptions(traffic=Traffic.BULK)
    flights = []
    for lane, chunk in zip(arena.lanes, arena.chunks, strict=True):
        for piece in chunk.slices.values():
            value = state.get(piece, {}).get(key)
            if isinstance(value, torch.Tensor) and value.dtype is dtype and value.shape == piece.shape:
                begin = piece.storage_offset()
                buffer[begin : begin + piece.numel()] = value
        source, target = (buffer.data_ptr() + begin * size for begin in (chunk.begin, chunk.place.begin))
        counts = [count * size for count in chunk.place.counts]
        flights.append(lane.all_gather(source, target, counts, DType.UINT8, options))
    for flight in flights:
        flight.wait()
    return buffer


def _whole(slot: ShardSlot, buffer: torch.Tensor, offset: int) -> torch.Tensor:
    flat = buffer[offset : offset + slot.parameter.numel()]
    return flat.as_strided(slot.region.shape, slot.region.stride()).clone()


Cut = tuple[ShardLayout, list[ShardChunk]]
"""How an arena is, or was, cut."""


def moved(arena: ShardArena, before: Cut, state: State, known: Known) -> State:
    """This rank's slices of an arena that is cut anew, from `state` of the slices `before`, which are taken out of it.
    All ranks must call it with what was `described` of the arena.

    One key moves after the other, so that only its values are there twice. On the wire: what changes hands, by one
    all-to-all per key.
    """
    fields = {(key, value) for entries in known.values() for key, (by_element, value) in entries.items() if by_element}
    pieces = [(piece, known[slot]) for chunk in arena.chunks for slot, piece in chunk.slices.items() if slot in known]
    found: State = {piece: _per_parameter(entries) for piece, entries in pieces}
    own = arena.layout.share(arena.rank)
    for key, dtype in sorted(fields, key=repr):
        values = _moved_field(arena, before, state, key, dtype)
        for piece, entries in pieces:
            if entries.get(key) == (True, dtype):
                begin = own.place(int(piece.storage_offset()))
                found[piece][key] = values[begin : begin + piece.numel()].clone()
    for piece in _slices(before[1]):
        state.pop(piece, None)
    return found


def _per_parameter(entries: dict[str, _Entry]) -> dict[str, Any]:
    """What isn't by element, copied, and a place for what is: in the keys' order."""
    return {key: None if by_element else copy.deepcopy(value) for key, (by_element, value) in entries.items()}


def _slices(chunks: Sequence[ShardChunk]) -> list[torch.nn.Parameter]:
    return [piece for chunk in chunks for piece in chunk.slices.values()]


def _moved_field(arena: ShardArena, before: Cut, state: State, key: str, dtype: torch.dtype) -> torch.Tensor:
    """The values of one key, of this rank's share as it is cut now. What they were before is taken out of `state`."""
    layout, chunks = before
    ranks = range(len(arena.layout.chunks[0].counts))
    had, has = layout.share(arena.rank), arena.layout.share(arena.rank)
    out = [had.common(arena.layout.share(rank)) for rank in ranks]
    into = [layout.share(rank).common(has) for rank in ranks]
    old = _taken(had, chunks, state, key, dtype)
    sent = torch.cat([old[:0], *_stretches(old, had, out)])
    size = old.element_size()
    del old  # is the largest thing here, and not needed while others are
    came = torch.empty(max(has.numel, 1), dtype=dtype, device="cpu")
    gives, gets = ([share.numel * size for share in shares] for shares in (out, into))
    source, target, options = sent.data_ptr(), came.data_ptr(), CallOptions(traffic=Traffic.BULK)
    arena.control_lane.all_to_all(source, target, gives, gets, DType.UINT8, options).wait()
    new, begin = torch.zeros(max(has.numel, 1), dtype=dtype, device="cpu"), 0
    for stretch in _stretches(new, has, into):
        stretch.copy_(came[begin : begin + stretch.numel()])
        begin += stretch.numel()
    return new


def _taken(
    had: Stretches, chunks: Sequence[ShardChunk], state: State, key: str, dtype: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """The values of one key, of the share `had` as one tensor, and no longer in `state`."""
    old = torch.zeros(max(had.numel, 1), dtype=dtype, device="cpu")
    for piece in _slices(chunks):
        value = state.get(piece, {}).get(key)
        if isinstance(value, torch.Tensor) and value.dtype is dtype and value.shape == piece.shape:
            begin = had.place(int(piece.storage_offset()))
            old[begin : begin + piece.numel()] = value
            del state[piece][key]
    return old


def _stretches(flat: torch.Tensor, share: Stretches, parts: Sequence[Stretches]) -> list[torch.Tensor]:
    """Views of `flat`, the elements of `share`, for what of it is in each of `parts`."""
    places = [(share.place(begin), end - begin) for part in parts for begin, end in part.stretches]
    return [flat[begin : begin + length] for begin, length in places]


def scattered(arenas: Sequence[ShardArena], whole: State) -> State:
    """This rank's slices of the state of whole parameters, copied. Sends nothing. Raises InvalidArgumentError."""
    found: State = {}
    for arena in arenas:
        for chunk in arena.chunks:
            for slot, piece in chunk.slices.items():
                owner = arena.slots[slot]
                entries = whole.get(owner.parameter)
                if entries:
                    begin = int(piece.storage_offset()) - arena.layout.offsets[slot]
                    found[piece] = {key: _slice(owner, key, value, begin, piece) for key, value in entries.items()}
    return found


def _slice(slot: ShardSlot, key: str, value: Any, begin: int, piece: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape == slot.region.shape:
        flat = torch.empty_strided(slot.region.shape, slot.region.stride(), dtype=value.dtype, device="cpu").copy_(
            value
        )
        return flat.as_strided((flat.numel(),), (1,))[begin : begin + piece.numel()].clone()
    if value.dim() == 0:
        return value.clone()
    raise InvalidArgumentError(
        f"the optimizer's state {key!r} of {slot.name!r} has the shape {tuple(value.shape)} for a parameter of shape"
        f" {tuple(slot.region.shape)}: shard='optimizer' needs a value per element, or one per parameter"
    )
