"""Tables at one shard in slow, obvious Python: frames in, frames out. Rows are int64 and are added, at once (asp)."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from byteps_like.wire.crc32c import crc32c
from byteps_like.wire.frame import NACKED_FETCH, NACKED_ROWS, RANGE, FrameFlag, FrameType, Header, decode_header, seal
from byteps_like.wire.note import NOTE_BYTES, Applied, decode_note

Frame = tuple[Header, bytes]


@dataclass
class Listed:
    """A list, on its way or there."""

    crc: int
    total: int
    ids: bytearray = field(default_factory=bytearray)


@dataclass
class Arriving:
    """A contribution on its way in."""

    clock: int
    ids: bytes
    data: bytearray = field(default_factory=bytearray)


class FakeTables:
    """One shard with one table of int64, of `width` elements a row."""

    def __init__(self, width: int, segment: int = 16) -> None:
        self.width, self.segment = width, segment
        self.rows: dict[int, np.ndarray] = {}
        self.version = 0
        self.clocks: Counter[int] = Counter()
        self.out: dict[int, list[Frame]] = defaultdict(list)
        """By rank, on the link there is."""
        self.seen: Counter[FrameType] = Counter()
        self.received: Counter[FrameType] = Counter()
        """Bytes."""
        self.answers: dict[tuple[int, int], int] = {}
        """By rank and clock: versions."""
        self._lists: dict[tuple[int, int], Listed] = {}
        self._arriving: dict[int, Arriving] = {}
        self._readers: list[tuple[int, Header, bytes | None, bytes]] = []
        """Rank, request, ids, range."""
        self._refused: dict[int, int] = {}
        """Clock, by rank, from which on contributions are dropped until it comes again."""

    def take(self, rank: int, header: Header, payload: bytes) -> None:
        """A frame of a rank, as it would be on the wire."""
        header = decode_header(seal(header, payload))
        self.seen[header.type] += 1
        self.received[header.type] += 64 + len(payload)
        match header.type:
            case FrameType.SPEC:
                assert not payload or payload.endswith(b"\nrows zeros")
                assert (header.total, header.offset, header.root) == (8 * self.width, self.width, 0xFFFFFFFF)
                opened = Header(FrameType.OPENED, key=header.key, offset=self.version, round=self.clocks[rank])
                self.out[rank].append((opened, b""))
            case FrameType.KEYS:
                self._keys(rank, header, payload)
            case FrameType.ROWS:
                self._rows(rank, header, payload)
            case FrameType.RESUME:
                self._resume(rank, header)
            case FrameType.FETCH:
                self._fetch(rank, header, payload)
            case other:
                raise AssertionError(f"{other.name} is not for a table")

    def cut(self, rank: int) -> None:
        """Its link is gone, with all that was on it."""
        self.out[rank].clear()
        self.forget(rank)
        self._refused.pop(rank, None)
        self._readers = [reader for reader in self._readers if reader[0] != rank]

    def forget(self, rank: int) -> None:
        """Lists of its link."""
        self._lists = {which: one for which, one in self._lists.items() if which[0] != rank}

    def _keys(self, rank: int, header: Header, payload: bytes) -> None:
        listed = self._lists.get((rank, header.aux))
        if header.offset == 0:
            listed = self._lists[rank, header.aux] = Listed(header.root, header.total)
        if listed is None or header.offset != len(listed.ids):
            return  # the rest of one that was forgotten
        listed.ids += payload
        if len(listed.ids) == header.total:
            assert crc32c(bytes(listed.ids)) == header.root
            ids = np.frombuffer(bytes(listed.ids), np.uint64)
            assert (ids[1:] > ids[:-1]).all()

    def _listed(self, rank: int, header: Header) -> bytes | None:
        listed = self._lists.get((rank, header.aux))
        known = listed is not None and len(listed.ids) == listed.total and listed.crc == header.root
        return bytes(listed.ids) if known and listed is not None else None

    def _rows(self, rank: int, header: Header, payload: bytes) -> None:
        noted = bool(header.flags & FrameFlag.NOTED)
        if rank in self._refused and not (noted and header.round == self._refused[rank]):
            return
        self._refused.pop(rank, None)
        if header.round < self.clocks[rank]:
            assert noted
            self._tell(rank, header, self.answers[rank, header.round])
            return
        assert header.round == self.clocks[rank], "in order"
        arriving = self._arriving.get(rank)
        if arriving is None or arriving.clock != header.round:
            assert noted, "a contribution begins without its first segment"
            ids = self._listed(rank, header)
            if ids is None:
                self._refuse(rank, header, NACKED_ROWS, 0)
                return
            arriving = self._arriving[rank] = Arriving(header.round, ids)
            decode_note(payload)
        body = payload[NOTE_BYTES:] if noted else payload
        assert header.offset <= len(arriving.data), "a gap"
        arriving.data += body[len(arriving.data) - header.offset :]
        assert header.total == len(arriving.ids) * self.width
        if len(arriving.data) == header.total:
            self._apply(rank, header, self._arriving.pop(rank))

    def _refuse(self, rank: int, header: Header, what: int, offset: int) -> None:
        if what == NACKED_ROWS:
            self._refused[rank] = header.round
        nack = replace(header, type=FrameType.NACK, flags=0, total=what, offset=offset, length=0, payload_crc=0)
        self.out[rank].append((nack, b""))

    def _apply(self, rank: int, header: Header, whole: Arriving) -> None:
        data = np.frombuffer(bytes(whole.data), np.int64).reshape(-1, self.width)
        for key, row in zip(np.frombuffer(whole.ids, np.uint64), data, strict=True):
            self.rows[int(key)] = self.rows.get(int(key), np.zeros(self.width, np.int64)) + row
        self.clocks[rank] += 1
        self.version += 1
        self.answers[rank, header.round] = self.version
        self._tell(rank, header, self.version)
        self._serve()

    def _tell(self, rank: int, header: Header, version: int) -> None:
        told = Header(FrameType.APPLIED, key=header.key, round=header.round, offset=version, aux=Applied.COUNTED)
        self.out[rank].append((told, b""))

    def _resume(self, rank: int, header: Header) -> None:
        arriving = self._arriving.get(rank)
        counted = len(arriving.data) if arriving is not None and arriving.clock == header.round else 0
        self.out[rank].append((replace(header, type=FrameType.RESUMED, offset=counted), b""))

    def _fetch(self, rank: int, header: Header, payload: bytes) -> None:
        ids = None
        if header.aux != RANGE:
            ids = self._listed(rank, header)
            if ids is None:
                self._refuse(rank, header, NACKED_FETCH, header.total)
                return
        self._readers.append((rank, header, ids, payload))
        self._serve()

    def _serve(self) -> None:
        waiting, self._readers = self._readers, []
        for rank, header, ids, payload in waiting:
            if self.clocks[rank] < header.round:
                self._readers.append((rank, header, ids, payload))
            else:
                self._answer(rank, header, ids, payload)

    def _answer(self, rank: int, header: Header, listed: bytes | None, payload: bytes) -> None:
        if listed is None:
            low, high = struct.unpack("<2Q", payload)
            ids = sorted(key for key in self.rows if low <= key < high)
            answer = np.array(ids, np.uint64).tobytes() + b"".join(self.rows[key].tobytes() for key in ids)
        else:
            zeros = np.zeros(self.width, np.int64)
            answer = b"".join(self.rows.get(int(key), zeros).tobytes() for key in np.frombuffer(listed, np.uint64))
        for offset in range(0, max(len(answer), 1), self.segment):
            piece = answer[offset : offset + self.segment]
            value = Header(
                FrameType.VALUE, key=header.key, round=header.round, aux=header.total, root=self.version,
                offset=offset, total=len(answer), length=len(piece),
            )  # fmt: skip
            self.out[rank].append((value, piece))
