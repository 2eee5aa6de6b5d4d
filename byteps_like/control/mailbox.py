"""Messages for one member, kept so that a stream that broke can go on where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Mailbox:
    """The encoded messages of one member, in order. The bytes are shared with all other mailboxes."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._wake = asyncio.Event()
        self._stream = 0
        self._closed = False

    def put(self, message: bytes) -> None:
        """Appends a message."""
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
        while self.is_open(stream):
            if position < len(self._messages):
                await write(self._messages[position])
                position += 1
            elif self._closed:
                return
            else:
                self._wake.clear()
                await self._wake.wait()
