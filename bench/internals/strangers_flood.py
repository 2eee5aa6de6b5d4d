"""Strangers: opens connections to a port at a steady rate, says the same on each, and keeps the last 600 open.

    python -m bench.internals.strangers_flood PORT RATE ADDRESSES HEX...

They come from as many addresses of 127.0.0.0/8, and say in turn what the arguments give in hexadecimal ("" is nothing).
Prints how many have come so far, once a second.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from contextlib import suppress
from socket import SOCK_NONBLOCK, SOCK_STREAM, socket

HELD = 600


def come(port: int, address: str, said: bytes) -> socket:
    """One connection that is being made; what it says is sent as soon as the port has it."""
    stranger = socket(type=SOCK_STREAM | SOCK_NONBLOCK)
    with suppress(OSError):
        stranger.bind((address, 0))
        stranger.connect_ex(("127.0.0.1", port))
        if said:
            stranger.send(said)
    return stranger


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("port", "rate", "addresses"):
        parser.add_argument(name, type=int)
    parser.add_argument("says", type=bytes.fromhex, nargs="+")
    options = parser.parse_args()
    port, rate, addresses, says = options.port, options.rate, options.addresses, options.says
    held: deque[socket] = deque()
    begin = told = time.monotonic()
    for count in range(1 << 62):
        time.sleep(max(begin + count / rate - time.monotonic(), 0.0))
        address = f"127.1.{count % addresses // 250}.{count % 250 % addresses + 1}"
        held.append(come(port, address, says[count % len(says)]))
        if len(held) > HELD:
            held.popleft().close()
        if time.monotonic() - told > 1:
            told = time.monotonic()
            print(count + 1, flush=True)


if __name__ == "__main__":
    main()
