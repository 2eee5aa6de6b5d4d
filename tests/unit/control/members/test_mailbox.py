"""A stream that breaks goes on where it stopped, and a member that does not read costs bounded memory."""

import asyncio

from byteps_like.control.members.mailbox import KEPT, PENDING_AT_MOST, Mailbox


async def read(box: Mailbox, position: int) -> list[bytes]:
    """What a stream from `position` on gets until it would wait."""
    got: list[bytes] = []

    async def write(message: bytes) -> None:
        got.append(message)

    task = asyncio.create_task(box.send_from(position, box.open_stream(), write))
    for _step in range(3):
        await asyncio.sleep(0)
    task.cancel()
    return got


def test_streams() -> None:
    async def scenario() -> None:
        box = Mailbox()
        for number in range(5):
            box.put(b"%d" % number)
        assert await read(box, 0) == [b"0", b"1", b"2", b"3", b"4"]
        assert await read(box, 3) == [b"3", b"4"]
        for number in range(5, 200):
            box.put(b"%d" % number)
        assert len(await read(box, 5)) == 195
        assert await read(box, 199) == [b"199"]
        assert len(await read(box, 0)) == KEPT

    asyncio.run(scenario())


def test_warnings_stop_piling_up() -> None:
    async def scenario() -> None:
        box = Mailbox()
        for _warning in range(2 * PENDING_AT_MOST):
            box.put(b"warning", droppable=True)
        box.put(b"failed")
        got = await read(box, 0)
        assert len(got) == PENDING_AT_MOST + 1
        assert got[-1] == b"failed"

    asyncio.run(scenario())


def test_a_newer_stream_ends_the_older_and_close_ends_all() -> None:
    async def scenario() -> None:
        box, got = Mailbox(), []

        async def write(message: bytes) -> None:
            got.append(message)

        older = asyncio.create_task(box.send_from(0, box.open_stream(), write))
        await asyncio.sleep(0)
        newer = asyncio.create_task(box.send_from(0, box.open_stream(), write))
        await asyncio.wait_for(older, 5)
        box.put(b"last")
        box.close()
        await asyncio.wait_for(newer, 5)
        assert got == [b"last"]

    asyncio.run(scenario())
