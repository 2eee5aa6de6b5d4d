"""What a process writes, cut into lines: checked against a reference that models a one-line terminal."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.launch.lines import LONGEST_LINE, LineSplitter, Tail


def reference(data: bytes) -> list[bytes]:
    """Each line as its last overwriting left it; a line that ends in a wiped progress bar is dropped."""
    shown = []
    for line in data.split(b"\n"):
        segments = line.rstrip(b"\r").split(b"\r")
        wiped = len(segments) > 1 and not segments[-1].strip() and line.rstrip(b"\r") != b""
        if not wiped:
            shown.append(segments[-1])
    if data.endswith(b"\n") or not data.rpartition(b"\n")[2]:
        shown.pop()
    return shown


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b" ", b"\r\n", "é".encode()]), max_size=40), st.randoms())
def test_any_cut_of_the_stream_gives_the_same_lines(pieces, random):
    data = b"".join(pieces)
    splitter, lines, start = LineSplitter(), [], 0
    while start < len(data):
        end = random.randint(start + 1, len(data))
        lines += splitter.feed(data[start:end])
        start = end
    assert lines + splitter.finish() == reference(data)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\r 10%|#   |\r100%|####|\n", [b"100%|####|"]),
        (b"\r 50%|##  |\r           \rdone\n", [b"done"]),
        (b"\r 50%|##  |\r           \r\n", []),
        (b"windows\r\nends\r\n", [b"windows", b"ends"]),
        (b"\n\x1b[A\n \n", [b"", b" "]),
        (b"\x1b[31mred\x1b[0m\x1b[K\n", [b"\x1b[31mred\x1b[0m"]),
        (b"\x1b]0;title\x07text\n", [b"text"]),
    ],
)
def test_lines_are_shown_as_a_terminal_would(written, shown):
    assert LineSplitter().feed(written) == shown


def test_partial_line_is_the_newest_state_of_a_progress_bar():
    splitter = LineSplitter()
    assert splitter.feed(b"\r 10%\r 2") == []
    assert splitter.partial == b" 2"
    assert splitter.feed(b"0%") == []
    assert splitter.partial == b" 20%"
    assert splitter.finish() == [b" 20%"]
    assert splitter.finish() == []


def test_a_line_without_end_is_cut_and_memory_stays_bounded():
    splitter, lines = LineSplitter(), []
    start = time.monotonic()
    for _ in range(64):
        lines += splitter.feed(b"x" * 65536)
    assert b"".join(lines + splitter.finish()) == b"x" * 65536 * 64
    assert max(map(len, lines)) <= LONGEST_LINE + 65536
    assert time.monotonic() - start < 2
    bar = LineSplitter()
    for _ in range(10_000):
        assert bar.feed(b"\r" + b"#" * 200) == []
    assert len(bar._rest) < 1000


def test_tail_is_bounded():
    tail = Tail(lines=3, longest=4)
    for number in range(5):
        tail.add(b"%d-long line" % number, float(number))
    assert tail.lines() == [(2.0, "2-lo …"), (3.0, "3-lo …"), (4.0, "4-lo …")]
