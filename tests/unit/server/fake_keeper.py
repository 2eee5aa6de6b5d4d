"""The store keys of one shard in slow, obvious Python: frames in, frames out. The keys are byteps_like.store's own."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from fake_store import FIRST, FakeLink, FakeStore

from byteps_like.dtypes import DType
from byteps_like.store.combining.registry import combining_of
from byteps_like.store.key import PushAnswer, StoreKey
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.policies.registry import policy_of
from byteps_like.store.updates.registry import update_of
from byteps_like.wire.frame import FrameFlag, FrameType, Header, decode_header, seal
from byteps_like.wire.note import NOTE_BYTES, Note, NoteBit, decode_note, encode_ranks

NUMPY = {DType.FLOAT32: np.float32, DType.FLOAT64: np.float64, DType.INT64: np.int64}
OF_KEYS = (FrameType.PUSH, FrameType.RESUME, FrameType.PULL)
Frame = tuple[Header, bytes]


@dataclass
class Arrival:
    """A contribution on its way in."""

    round: int
    note: Note
    heard: int
    data: bytearray = field(default_factory=bytearray)


@dataclass
class Entry:
    """A key."""

    spec: Header
    text: str
    key: StoreKey | None = None
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    openers: set[int] = field(default_factory=set)
    readers: list[tuple[int, Header]] = field(default_factory=list)
    history: dict[int, bytes] = field(default_factory=dict)
    """Values by version."""


class FakeKeeper:
    """One shard for so many ranks. Values go out in segments of `segment` bytes."""

    def __init__(self, ranks: int, segment: int = 16) -> None:
        self.ranks, self.segment = ranks, segment
        self.entries: dict[int, Entry] = {}
        self.out: dict[int, list[Frame]] = defaultdict(list)
        """By rank, on the link there is."""
        self.seen: Counter[FrameType] = Counter()
        self._texts: dict[tuple[int, int], str] = {}

    def take(self, rank: int, header: Header, payload: bytes) -> None:
        """A frame of a rank, as it would be on the wire."""
        header = decode_header(seal(header, payload))
        self.seen[header.type] += 1
        match header.type:
            case FrameType.SPEC:
                self._spec(rank, header, payload.decode())
            case FrameType.PUSH:
                self._push(rank, header, payload)
            case FrameType.RESUME:
                self._resume(rank, header)
            case FrameType.PULL:
                self.entries[header.key].readers.append((rank, header))
                self._serve(self.entries[header.key])
            case other:
                raise AssertionError(f"{other.name} is not for a store key")

    def cut(self, rank: int) -> None:
        """Its link is gone, with all that was on it."""
        self.out[rank].clear()
        self._texts = {which: text for which, text in self._texts.items() if which[0] != rank}
        for entry in self.entries.values():
            entry.openers.discard(rank)
            entry.readers = [reader for reader in entry.readers if reader[0] != rank]

    def _spec(self, rank: int, header: Header, text: str) -> None:
        text = text or self._texts[rank, header.aux]
        self._texts[rank, header.aux] = text
        entry = self.entries.setdefault(header.key, Entry(header, text))
        told = [(one.dtype, one.total, one.offset, one.root) for one in (header, entry.spec)]
        assert (told[0], text) == (told[1], entry.text)
        if entry.key is None and header.root == 0xFFFFFFFF:
            self._begin(entry, bytes(header.total))
        if entry.key is None and header.root != rank:
            entry.openers.add(rank)
        else:
            self._open(entry, rank)

    def _open(self, entry: Entry, rank: int) -> None:
        header = Header(FrameType.OPENED, key=entry.spec.key, aux=int(entry.key is None))
        if entry.key is not None:
            ledger = entry.key.ledger
            header = replace(header, offset=ledger.version, round=ledger.clock(rank))
        self.out[rank].append((header, b""))

    def _begin(self, entry: Entry, value: bytes) -> None:
        policy, combine, update = (line.partition(" ")[2] for line in entry.text.split("\n"))
        array = np.frombuffer(value, NUMPY[entry.spec.dtype]).reshape(-1, entry.spec.offset).copy()
        entry.key = StoreKey(
            array, policy_of(policy, self.ranks), range(self.ranks), update_of(update), combining_of(combine)
        )
        entry.history[0] = value
        for rank in sorted(entry.openers):
            self._open(entry, rank)
        entry.openers.clear()

    def _push(self, rank: int, header: Header, payload: bytes) -> None:
        entry = self.entries[header.key]
        noted = bool(header.flags & FrameFlag.NOTED)
        assert header.flags & FrameFlag.SILENT
        note = decode_note(payload) if noted else Note()
        if entry.key is not None and header.round < entry.key.ledger.clock(rank):
            assert noted
            self._tell(entry, entry.key.push(self._contribution(rank, header.round, note), entry.key.value, 0.0))
            return
        arrival = entry.arrivals.get(rank)
        if arrival is None or arrival.round != header.round:
            assert noted, "a contribution begins without its first segment"
            arrival = entry.arrivals[rank] = Arrival(header.round, note, header.aux)
        assert header.offset <= len(arrival.data), "a gap"
        body = payload[NOTE_BYTES:] if noted else payload
        arrival.data += body[len(arrival.data) - header.offset :]
        if len(arrival.data) == header.total:
            del entry.arrivals[rank]
            self._whole(entry, rank, arrival)

    def _whole(self, entry: Entry, rank: int, arrival: Arrival) -> None:
        if arrival.note.bits & NoteBit.INITIAL:
            assert entry.key is None and rank == entry.spec.root
            self._begin(entry, bytes(arrival.data))
            return
        assert entry.key is not None
        assert arrival.round == entry.key.ledger.clock(rank)
        entry.key.heard(rank, arrival.heard)
        gradient = np.frombuffer(bytes(arrival.data), entry.key.value.dtype).reshape(entry.key.value.shape)
        lr = None if math.isnan(arrival.note.lr) else arrival.note.lr
        push = self._contribution(rank, arrival.round, arrival.note)
        self._tell(entry, entry.key.push(push, gradient, 0.0, lr))

    def _contribution(self, rank: int, clock: int, note: Note) -> Contribution:
        return Contribution(rank, clock, note.base, note.weight)

    def _tell(self, entry: Entry, answers: list[PushAnswer]) -> None:
        assert entry.key is not None
        entry.history.setdefault(entry.key.ledger.version, entry.key.value.tobytes())
        for one in answers:
            header = Header(
                FrameType.APPLIED, key=entry.spec.key, round=one.push.clock, offset=one.version, aux=one.applied,
                total=entry.spec.total,
            )  # fmt: skip
            ranks = b"" if one.contributors == (one.push.source,) else encode_ranks(one.contributors)
            self.out[one.push.source].append((replace(header, length=len(ranks)), ranks))
        self._serve(entry)

    def _resume(self, rank: int, header: Header) -> None:
        arrival = self.entries[header.key].arrivals.get(rank)
        counted = len(arrival.data) if arrival is not None and arrival.round == header.round else 0
        self.out[rank].append((replace(header, type=FrameType.RESUMED, offset=counted), b""))

    def _serve(self, entry: Entry) -> None:
        assert entry.key is not None
        waiting, entry.readers = entry.readers, []
        for rank, header in waiting:
            ledger = entry.key.ledger
            if ledger.clock(rank) >= header.round and ledger.version >= header.aux and ledger.may_read(rank):
                self._send(rank, header, ledger.version, entry.key.value.tobytes())
            else:
                entry.readers.append((rank, header))

    def _send(self, rank: int, header: Header, version: int, value: bytes) -> None:
        for offset in range(0, len(value), self.segment):
            piece = value[offset : offset + self.segment]
            segment = replace(header, type=FrameType.VALUE, root=version, offset=offset, aux=0, length=len(piece))
            self.out[rank].append((segment, piece))


class KeepingStore(FakeStore):
    """A FakeStore that keeps values, too."""

    def __init__(self, size: int, **drops: int) -> None:
        super().__init__(size, **drops)
        self.keeper = FakeKeeper(size, segment=5000)

    def open_link(self, member: int) -> FakeLink:
        with self.lock:
            self.keeper.cut(member - FIRST)
        return super().open_link(member)

    def handle(self, link: FakeLink, header: Header, payload: bytes) -> None:
        kept = header.type in OF_KEYS and header.key in self.keeper.entries
        if not kept and header.type is not FrameType.SPEC:
            super().handle(link, header, payload)
            return
        self.keeper.take(link.rank, header, payload)
        for rank, frames in self.keeper.out.items():
            if rank in self.links:
                self._give(self.links[rank], replace(header, member=FIRST + rank), frames)

    def _give(self, link: FakeLink, like: Header, frames: list[Frame]) -> None:
        for header, payload in frames:
            link.give(replace(header, view=like.view, member=like.member), payload)
        frames.clear()
