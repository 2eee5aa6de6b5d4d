"""Messages for one member, kept so that a stream that broke can go on where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

KEPT = 64
"""Messages kept after they were written: more can't be on their way when a stream breaks."""

PENDING_AT_MOST = 256
"""Unwritten messages from which on a member that does not read is spared further warnings."""


class Mailbox:
    """The encoded messages of one member, numbered from 0. The bytes are shared with all other mailboxes."""

    def __init__(self, *, goes_on: bool = False) -> None:
        """`goes_on`: the member has had messages of an earlier scheduler; the first here is that after the last which
        it has seen."""
        self._messages: list[bytes] = []
        self._first = 0  # number of _messages[0]
        self._written = 0
        self._goes_on = goes_on
        self._wake = asyncio.Event()
        self._stream = 0
        self._closed = False

    def put(self, message: bytes, *, droppable: bool = False) -> None:
        """Appends a message."""
        if droppable and self._first + len(self._messages) - self._written >= PENDING_AT_MOST:
            return
        self._messages.append(message)
        self._wake.set()

    def close(self) -> None:
        """Ends the stream once everything has been sent."""
        self._closed = True
        self._wake.set()

    @property
    def closed(self) -> bool:
        """True once nothing more will come."""
        return self._closed

    def open_stream(self) -> int:
        """Starts a stream; an older one of this member ends."""
        self._stream += 1
        self._wake.set()
        return self._stream

    def is_open(self, stream: int) -> bool:
        """True while `stream` is the member's newest."""
        return stream == self._stream

    async def send_from(self, position: int, stream: int, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes everything from `position` on, as it comes, until `close` or a newer stream."""
        if self._goes_on:
            self._first = self._written = position
            self._goes_on = False
        position = max(position, self._first)
        while self.is_open(stream):
            if position < self._first + len(self._messages):
                await write(self._messages[position - self._first])
                position += 1
                self._forget_before(position)
            elif self._closed:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _forget_before(self, position: int) -> None:
        self._written = max(self._written, position)
        surplus = self._written - KEPT - self._first
        if surplus > 0:
            del self._messages[:surplus]
            self._first += surplus
