"""What travels from a worker to a newcomer: records, each of which is a head, a text, a stripe of its tensors, and how
many more wait; and what the newcomer says to that."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Traffic
from byteps_like.config import Config
from byteps_like.control.calls.secret import derive, load
from byteps_like.errors import CorruptError
from byteps_like.torch.elastic.catching_up.stripes import Bytes
from byteps_like.torch.job.sealed import Seal

CHUNK_BYTES = 256 << 10
"""Of one message: so long may gradients wait behind it."""
MOST_FEEDERS = 16
"""Ranks that send: as many as fill any link, and no more threads than that."""
GOODBYE = "goodbye"
"""What errors of links say whose other end was closed in order."""
BULK = CallOptions(traffic=Traffic.BULK)
MOST_OPEN = 8
"""Records that a newcomer gets before it has made the first of them: what must wait does so at the workers, whose
queues have a limit."""
PULSE_SECONDS = 0.25
"""Between two signs of life: shorter than anybody waits in silence."""
_HEAD, _BEHIND, _WORD = struct.Struct("<qqqq"), struct.Struct("<q"), struct.Struct("<qqq")
_LONGEST_TEXT = 1 << 30


@dataclass(frozen=True)
class RecordHead:
    """What a worker says of each record before it sends it."""

    number: int
    """0 is the state of a commit, all that follow are steps; what is below 0 is no record."""
    text_bytes: int
    stripe_bytes: int
    stripe: int = 0
    """Whose part of it this is: the sender's, or that of the sender before it, for which it stands in."""

    BYTES = _HEAD.size
    PULSE = -1
    """The worker lives, though its next step takes long."""
    WORLD = -2
    """After `text_bytes` records the world of number `stripe_bytes` has begun."""
    END = -3
    """This worker leaves the job, and sends no more."""
    GIVEN_UP = -4
    """It sends no more, and won't if it is asked again."""
    TOO_SLOW = -5
    """It sends no more, since too much waits by now."""

    def packed(self) -> Bytes:
        """As it travels."""
        return as_bytes(_HEAD.pack(self.number, self.text_bytes, self.stripe_bytes, self.stripe))

    @classmethod
    def unpacked(cls, data: Bytes) -> RecordHead:
        """Raises CorruptError for what is none."""
        head = cls(*_HEAD.unpack(data.tobytes()))
        if not (head.number >= cls.TOO_SLOW and 0 <= head.text_bytes <= _LONGEST_TEXT and head.stripe_bytes >= 0):
            raise CorruptError(f"a worker has sent {head}, which can't be", operation="catch up")
        return head


@dataclass(frozen=True)
class Word:
    """What a newcomer tells a worker: how far it is, and for whom that worker is to stand in."""

    made: int
    """Records that it needs no more."""
    stripe: int = -1
    """Of the sender before the one that is told, which is lost."""
    first: int = 0
    """The first record of which that is missing."""

    BYTES = _WORD.size

    def packed(self) -> Bytes:
        """As it travels."""
        return as_bytes(_WORD.pack(self.made, self.stripe, self.first))

    @classmethod
    def unpacked(cls, data: Bytes) -> Word:
        """The same again."""
        return cls(*_WORD.unpack(data.tobytes()))


def stand_in(sender: int, feeders: int) -> int:
    """Who holds the stripes of `sender` as well: the next one; itself, if there is no other."""
    return (sender + 1) % feeders


@dataclass(frozen=True)
class FeedingWorld:
    """Those who send, and the newcomer, which is the last rank: they meet in a world of their own."""

    peers: tuple[dict[str, Any], ...]

    @property
    def feeders(self) -> int:
        """How many send."""
        return len(self.peers) - 1

    @property
    def incarnation(self) -> bytes:
        """Of this one world."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).digest()

    @property
    def text(self) -> str:
        """As it travels."""
        return json.dumps(self.peers, sort_keys=True)

    @classmethod
    def of(cls, text: str) -> FeedingWorld:
        """Raises CorruptError for what is none."""
        try:
            return cls(tuple(dict(peer) for peer in json.loads(text)))
        except (TypeError, ValueError) as error:
            raise CorruptError(f"{text[:80]!r} is no list of workers: {error}", operation="catch up") from None

    def ranks(self) -> list[Any]:
        """As communicators know them. Raises CorruptError for what is none."""
        from byteps_like.collectives.communicator import Peer

        try:
            return [Peer(**{**one, "urls": tuple(map(str, one["urls"]))}) for one in self.peers]
        except (KeyError, TypeError) as error:
            raise CorruptError(f"what is no address of a worker has come: {error!r}", operation="catch up") from None

    def entered(self, communicator: Any, rank: int) -> Group:
        """By a communicator that listens at this rank's address. Raises CorruptError."""
        communicator.join(1, rank, self.ranks(), self.incarnation)
        group: Group = communicator.group("catch up")
        return group


def behind_packed(count: int) -> Bytes:
    """So many records wait behind the one that has come, as it travels."""
    return as_bytes(_BEHIND.pack(count))


def behind_unpacked(data: Bytes) -> int:
    """The same again."""
    return int(_BEHIND.unpack(data.tobytes())[0])


BEHIND_BYTES = _BEHIND.size


def as_bytes(text: bytes) -> Bytes:
    """A copy that can be sent."""
    return np.frombuffer(text, np.uint8).copy()


def seal_of(config: Config, incarnation: bytes, record: int) -> Seal:
    """With which the text of a record goes: what becomes objects again has to be a worker's of this job and world."""
    key = derive(load(config), f"catch up {incarnation.hex()}")
    return Seal(key, "catch up", 0, record)


def listening(config: Config) -> Any:
    """A Communicator that others of this job can reach for such a world."""
    from byteps_like.collectives.communicator import Communicator

    secret = derive(load(config), "catch up")
    return Communicator(config, f"catch-up-{derive(secret, 'name')[:4].hex()}", secret)


def address_of(communicator: Any) -> dict[str, Any]:
    """As the others must have it."""
    return asdict(communicator.own)


def chunks(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths."""
    return ((offset, min(CHUNK_BYTES, nbytes - offset)) for offset in range(0, nbytes, CHUNK_BYTES))


def sent(group: Group, data: Bytes, peer: int) -> CollectiveOperation:
    """`data` on its way: it must stay."""
    return group.send(data.ctypes.data, data.nbytes, peer, options=BULK)


def received(group: Group, nbytes: int, peer: int, timeout: float) -> Bytes:
    """The next so many bytes of a rank. Blocks; raises what `receive` does, and DeadlineError."""
    data = np.empty(nbytes, np.uint8)
    if nbytes:
        group.receive(data.ctypes.data, nbytes, peer, options=BULK._replace(timeout=timeout)).wait()
    return data


def addresses(text: str) -> Sequence[dict[str, Any]]:
    """A newcomer's, of which there is one. Raises CorruptError."""
    return FeedingWorld.of(text).peers
