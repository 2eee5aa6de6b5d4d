"""Links with tls=on against the same links in the clear: one connection over loopback, from one core to another.

    python -m bench.internals.tls [--megabytes 512] [--repeats 9]

Both by turns in one run: frames of 128 KiB of payload, from one thread to another, each on a core of its own. In the
clear both ends compute checksums of the payloads, encrypted they don't. The ratio is the median over the turns. A line
goes to out/tls.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from bench.report import OUT, Spread, interleave, print_table, write_json_lines
from byteps_like import _core

TARGET = 0.60
URLS = {"clear": "tcp://127.0.0.1:0", "tls": "tls+tcp://127.0.0.1:0"}


def timed(url: str, nbytes: int) -> Callable[[], float]:
    """Seconds per byte."""
    return lambda: 1 / _core.link_rate(url, nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=512, help="payload of each turn")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    nbytes = options.megabytes << 20
    times = interleave({name: timed(url, nbytes) for name, url in URLS.items()}, options.repeats)
    rates = {name: Spread.of([1 / one for one in found]) for name, found in times.items()}
    ratios = Spread.of([clear / tls for clear, tls in zip(times["clear"], times["tls"], strict=True)])
    print_table(
        f"a link over loopback, two cores, {options.repeats} turns of {options.megabytes} MiB",
        ("link", "GB/s", "quartiles"),
        [
            *(
                (name, f"{one.median / 1e9:.2f}", f"{one.low / 1e9:.2f}-{one.high / 1e9:.2f}")
                for name, one in rates.items()
            ),
            ("tls / clear", f"{ratios.median:.2f} (target {TARGET:.2f})", f"{ratios.low:.2f}-{ratios.high:.2f}"),
        ],
    )
    row = {
        "clear_bytes_per_second": statistics.median(1 / one for one in times["clear"]),
        "tls_bytes_per_second": statistics.median(1 / one for one in times["tls"]),
        "ratio": ratios.median,
        "quartiles": [ratios.low, ratios.high],
    }
    write_json_lines(OUT / "tls.jsonl", vars(options), [row])


if __name__ == "__main__":
    main()
