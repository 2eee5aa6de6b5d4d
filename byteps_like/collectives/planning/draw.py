"""Draws a schedule as SVG: a column for each rank, time downwards, an arrow for each message, in its chunk's colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from byteps_like.collectives.planning.timeline import TimedMessage
from byteps_like.collectives.schedules.schedule import Layout

_COLUMN, _ROW, _GAP, _MARGIN, _TOP = 104, 17, 16, 76, 96
_INK, _PALE, _BAND = "#1f2430", "#8a90a0", "#f4f5f8"


@dataclass(frozen=True)
class _Band:
    """One round: rows of messages that do not cover one another, and where they begin."""

    number: int
    rows: list[list[TimedMessage]]
    top: int

    @property
    def height(self) -> int:
        return len(self.rows) * _ROW + _GAP


def svg(title: str, caption: str, messages: Sequence[TimedMessage], layout: Layout) -> str:
    """The picture as a document. `messages` are those of timeline.messages, `caption` is a second line of text."""
    columns = {rank: _MARGIN + place * _COLUMN for place, rank in enumerate(layout.by_host)}
    bands = list(_bands(messages, columns))
    bottom = bands[-1].top + bands[-1].height if bands else _TOP
    width, height = max(560, _MARGIN * 2 + (layout.size - 1) * _COLUMN), bottom + 44
    shades = len({message.first for message in messages})
    order = {first: number for number, first in enumerate(sorted({message.first for message in messages}))}
    colours = {first: _colour(number, shades) for first, number in order.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_MARGIN - 56, 26, title, 16, _INK, weight="bold"),
        _text(_MARGIN - 56, 45, caption, 11.5, _PALE),
        *_rounds(bands, width),
        *_hosts(layout, columns, bottom),
        *_ranks(columns, bottom),
    ]
    for band in bands:
        for place, row in enumerate(band.rows):
            y = band.top + _GAP / 2 + (place + 0.5) * _ROW
            for one in row:
                parts.extend(_arrow(columns[one.source], columns[one.target], y, one, colours[one.first]))
    parts.append(
        _text(_MARGIN - 56, height - 14, "full: reduced on arrival; double head: complete; dashed: kept", 11, _PALE)
    )
    return "\n".join([*parts, "</svg>", ""])


def _bands(messages: Sequence[TimedMessage], columns: dict[int, int]) -> Iterator[_Band]:
    top = _TOP
    for number, group in groupby(messages, key=lambda message: message.round):
        band = _Band(number, _rows(list(group), columns), top)
        yield band
        top += band.height


def _rows(messages: Sequence[TimedMessage], columns: dict[int, int]) -> list[list[TimedMessage]]:
    """Each message in the first row where there is room for it; arrows may touch end to end."""
    rows: list[list[TimedMessage]] = []
    taken: list[list[tuple[int, int]]] = []
    for message in messages:
        low, high = sorted((columns[message.source], columns[message.target]))
        for row, spans in zip(rows, taken, strict=True):
            if all(high <= left or right <= low for left, right in spans):
                row.append(message)
                spans.append((low, high))
                break
        else:
            rows.append([message])
            taken.append([(low, high)])
    return rows


def _hosts(layout: Layout, columns: dict[int, int], bottom: int) -> Iterator[str]:
    """A frame around the columns of each host, if hosts matter."""
    if not 1 < len(layout.members) < layout.size:
        return
    for number, ranks in enumerate(layout.members):
        left, right = columns[ranks[0]] - 38, columns[ranks[-1]] + 38
        yield (
            f'<rect x="{left}" y="56" width="{right - left}" height="{bottom - 46}" rx="8" fill="none" '
            f'stroke="{_PALE}" stroke-dasharray="2 3"/>'
        )
        yield _text(left + 7, 69, f"host {number}", 10, _PALE)


def _rounds(bands: Sequence[_Band], width: int) -> Iterator[str]:
    for band in bands:
        if band.number % 2:
            yield f'<rect x="0" y="{band.top}" width="{width}" height="{band.height}" fill="{_BAND}"/>'
        yield _text(10, band.top + band.height / 2 + 4, str(band.number), 11, _PALE)


def _ranks(columns: dict[int, int], bottom: int) -> Iterator[str]:
    for rank, x in columns.items():
        yield f'<line x1="{x}" y1="{_TOP - 4}" x2="{x}" y2="{bottom}" stroke="#c9cdd8" stroke-width="1.5"/>'
        yield f'<circle cx="{x}" cy="{_TOP - 14}" r="11" fill="{_INK}"/>'
        yield _text(x, _TOP - 10, str(rank), 11, "white", anchor="middle", weight="bold")


def _arrow(start: float, end: float, y: float, message: TimedMessage, colour: str) -> Iterator[str]:
    way = 1 if end > start else -1
    dashes = "" if message.reduces else ' stroke-dasharray="5 3"'
    yield f'<circle cx="{start}" cy="{y}" r="2.5" fill="{colour}"/>'
    yield f'<line x1="{start}" y1="{y}" x2="{end - way * 5}" y2="{y}" stroke="{colour}" stroke-width="1.6"{dashes}/>'
    for head in (end, end - way * 7) if message.final else (end,):
        yield f'<path d="M{head} {y} l{-way * 8} -3.6 v7.2 z" fill="{colour}"/>'
    place = start + way * min(_COLUMN, abs(end - start)) * 0.46
    half = 3.1 * len(message.label) + 3
    yield f'<rect x="{place - half}" y="{y - 6.5}" width="{2 * half}" height="13" rx="3" fill="white" opacity="0.92"/>'
    yield _text(place, y + 3.7, message.label, 10.5, colour, anchor="middle")


def _colour(number: int, count: int) -> str:
    """Hues that are far apart for few chunks; never so light that they vanish on white."""
    hue = (0.58 + number / max(count, 1)) % 1
    red, green, blue = (round(255 * part) for part in hls_to_rgb(hue, 0.36 + 0.08 * (number % 2), 0.62))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _text(
    x: float, y: float, text: str, size: float, colour: str, *, anchor: str = "start", weight: str = "normal"
) -> str:
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'
