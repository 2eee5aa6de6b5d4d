"""What appears on a terminal and in a file, judged by a small model of a terminal."""

import io
import re

from byteps_like.launch.child import ChildPart
from byteps_like.launch.display import PlainDisplay, Prefixes, TerminalDisplay

W0, W1, SCHEDULER = ChildPart("worker", 0), ChildPart("worker", 1), ChildPart("scheduler", 0)
TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Terminal:
    """Understands what the display may use: text, CR, LF, colours, cursor up, erase to the end."""

    def __init__(self, width):
        self.width, self.rows, self.row, self.column = width, [""], 0, 0

    def write(self, data):
        for number, code, cr, lf, text in TOKEN.findall(data.decode()):
            if cr:
                self.column = 0
            elif lf:
                self.row, self.column = self.row + 1, 0
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif text:
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + text + line[self.column + len(text) :]
                self.column += len(text)
            elif code == "A":
                self.row -= int(number or 1)
                assert self.row >= 0
            elif code == "J":
                self.rows[self.row :] = [self.rows[self.row][: self.column]]
            else:
                assert code == "m", code
        return len(data)

    def flush(self):
        assert all(len(row) <= self.width for row in self.rows), self.rows


def display_on(width=60, enabled=True):
    terminal = Terminal(width)
    prefixes = Prefixes([W0, W1, SCHEDULER], enabled=enabled, colour=True)
    return terminal, TerminalDisplay(prefixes, terminal, lambda: width, colour=True)


def test_progress_rows_stay_below_whatever_is_printed():
    terminal, display = display_on()
    display.live([(W0, b" 10%|#"), (W1, b" 20%|##")], "summary 1")
    display.flush()
    assert terminal.rows == ["worker 0  │  10%|#", "worker 1  │  20%|##", "summary 1"]
    display.line(W1, "stdout", b"\x1b[31mhello")
    display.line(W0, "stderr", b"there")
    display.live([(W0, b" 30%|###")], "summary 2")
    display.flush()
    assert terminal.rows == ["worker 1  │ hello", "worker 0  │ there", "worker 0  │  30%|###", "summary 2"]
    display.note("note")
    display.close()
    assert terminal.rows == ["worker 1  │ hello", "worker 0  │ there", "note", ""]


def test_rows_never_wrap_and_never_fill_the_screen():
    terminal, display = display_on(width=40)
    display.live([(ChildPart("worker", n), "█".encode() * 100 + b"\t\xff") for n in range(30)], "s" * 100)
    display.flush()
    assert len(terminal.rows) == 10
    assert terminal.rows[8] == "… and 22 more"
    assert terminal.rows[9].endswith("s…")
    display.live([], "")
    display.flush()
    assert terminal.rows == [""]


def test_colours_of_a_progress_bar_are_dropped_and_those_of_a_line_end_with_it():
    written = io.BytesIO()
    prefixes = Prefixes([W0], enabled=True, colour=False)
    display = TerminalDisplay(prefixes, written, lambda: 80, colour=False)
    display.line(W0, "stdout", b"\x1b[31mred")
    display.live([(W0, b"\x1b[32m 50%\x1b[0m")], "")
    display.flush()
    assert written.getvalue() == "worker 0 │ \x1b[31mred\x1b[0m\nworker 0 │  50%".encode()


def test_nothing_new_writes_nothing():
    written = io.BytesIO()
    display = TerminalDisplay(Prefixes([W0], enabled=True, colour=True), written, lambda: 80, colour=True)
    display.live([(W0, b"5%")], "s")
    display.flush()
    size = len(written.getvalue())
    display.live([(W0, b"5%")], "s")
    display.flush()
    assert len(written.getvalue()) == size


def test_a_file_gets_each_line_once_and_nothing_that_passes():
    out, err = io.BytesIO(), io.BytesIO()
    display = PlainDisplay(Prefixes([W0, W1], enabled=True, colour=False), out, err)
    display.line(W0, "stdout", b"text")
    display.live([(W0, b"half")], "summary")
    display.line(W0, "stdout", b"half a line, and the rest")
    display.line(W1, "stderr", b"\xff\xfe raw")
    display.note("note")
    display.close()
    assert out.getvalue() == "worker 0 │ text\nworker 0 │ half a line, and the rest\n".encode()
    assert err.getvalue() == "worker 1 │ ".encode() + b"\xff\xfe raw\nnote\n"


def test_streams_that_are_one_file_keep_their_order():
    order = []

    class Buffered:
        def __init__(self, name):
            self.name, self.held = name, []

        def write(self, data):
            self.held.append(data)

        def flush(self):
            order.extend((self.name, data) for data in self.held)
            self.held.clear()

    display = PlainDisplay(Prefixes([], enabled=False, colour=False), Buffered("out"), Buffered("err"))
    for stream, text in (("stdout", b"1"), ("stderr", b"2"), ("stderr", b"3"), ("stdout", b"4")):
        display.line(W0, stream, text)
    display.flush()
    assert order == [("out", b"1\n"), ("err", b"2\n"), ("err", b"3\n"), ("out", b"4\n")]
