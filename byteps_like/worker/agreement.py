"""Whether all ranks of a group mean the same by one name: a few words of each, compared by all."""

from __future__ import annotations

import ctypes
import sys
import zlib

from byteps_like.collectives.api import CallOptions, Group, Keeper, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, MismatchError
from byteps_like.worker.api import first_difference

WORDS_BYTES = 128
"""Sent by each rank to all: a checksum of the words, and as much of them as there is room for."""


_DETAILS_SECONDS = 5.0
"""For which the others' details are awaited: who has refused a call beside this one doesn't send any."""


class Agreement:
    """One comparison in flight. `words` is what this rank means by `what`; `details` say it line by line, where there
    are too many for all.

    On the wire: an all-gather of WORDS_BYTES per rank; where they differ, two more, of the details.
    """

    def __init__(self, group: Group, what: str, words: str, details: str = "") -> None:
        self._group, self._what, self._details = group, what, details
        text = words.encode()
        self._own = ctypes.create_string_buffer(
            f"{zlib.crc32(text):08x}".encode() + text[: WORDS_BYTES - 9], WORDS_BYTES
        )
        self._all = ctypes.create_string_buffer(WORDS_BYTES * group.size)
        self._operation = group.all_gather(
            ctypes.addressof(self._own), ctypes.addressof(self._all), [WORDS_BYTES] * group.size, DType.UINT8,
            CallOptions(traffic=Traffic.CONTROL),
        )  # fmt: skip

    def __del__(self) -> None:
        # Dropped before its end (a push_pull beside it was refused): the operation still reads and writes the words.
        operation = getattr(self, "_operation", None)
        if operation is not None and not sys.is_finalizing() and not operation.done():
            operation.on_done(Keeper(self._own, self._all))

    def done(self) -> bool:
        """Whether everybody's words are there."""
        return self._operation.done()

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation."""
        self._operation.give_up(error)

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until they are. Raises MismatchError, the same on all ranks, naming the ranks that differ."""
        self._operation.wait(timeout)
        raw = self._all.raw
        found = [raw[start : start + WORDS_BYTES].rstrip(b"\0") for start in range(0, len(raw), WORDS_BYTES)]
        if len(set(found)) > 1:
            told = self._gathered_details() or [words[8:].decode(errors="replace") for words in found]
            raise MismatchError(
                f"{self._what}: the ranks disagree: {_listed(self._group.ranks, told)}; all ranks must make the same"
                " calls with the same arguments",
                key=self._what.strip("'"),
            )

    def _gathered_details(self) -> list[str]:
        """Of each rank the first line in which they differ; none if there are no details, or they don't come."""
        try:
            texts = _gathered(self._group, self._details.encode())
        except BytePSLikeError:
            return []
        return first_difference([text.decode(errors="replace") for text in texts])


def _gathered(group: Group, own: bytes) -> list[bytes]:
    size, options = group.size, CallOptions(timeout=_DETAILS_SECONDS, traffic=Traffic.CONTROL)
    length = (ctypes.c_uint64 * 1)(len(own))
    lengths = (ctypes.c_uint64 * size)()
    group.all_gather(ctypes.addressof(length), ctypes.addressof(lengths), [8] * size, DType.UINT8, options).wait()
    counts = list(lengths)
    source = ctypes.create_string_buffer(own, max(len(own), 1))
    target = ctypes.create_string_buffer(max(sum(counts), 1))
    group.all_gather(ctypes.addressof(source), ctypes.addressof(target), counts, DType.UINT8, options).wait()
    starts = [sum(counts[:rank]) for rank in range(size)]
    return [target.raw[start : start + count] for start, count in zip(starts, counts, strict=True)]


def _listed(ranks: tuple[int, ...], found: list[str]) -> str:
    who: dict[str, list[str]] = {}
    for rank, words in zip(ranks, found, strict=True):
        who.setdefault(words, []).append(str(rank))
    return ", ".join(
        f"rank{'s' if len(some) > 1 else ''} {', '.join(some)} {'have' if len(some) > 1 else 'has'} {words}"
        for words, some in who.items()
    )
