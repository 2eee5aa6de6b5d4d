"""A report as one HTML file that needs nothing else: verdict, picture, tables."""

from __future__ import annotations

import base64
import tempfile
from html import escape
from pathlib import Path

from byteps_like.timeline.analysis import Analysis
from byteps_like.timeline.draw import draw
from byteps_like.timeline.report import Row, tables, verdict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } img { max-width: 100% }
table { border-collapse: collapse } td, th { padding: .2rem .9rem; text-align: right; border-bottom: 1px solid #ddd }
td.word, th.word { text-align: left } .verdict { font-size: 1.1rem }
"""


def write_page(analysis: Analysis, path: Path, source: str) -> None:
    """Writes it. Raises as `draw` does, OSError."""
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "timeline.png"
        draw(analysis, picture)
        image = base64.b64encode(picture.read_bytes()).decode()
    body = "".join(f"<p class=verdict>{escape(line)}</p>" for line in verdict(analysis))
    body += f'<img alt="where the steps went" src="data:image/png;base64,{image}">'
    body += "".join(_table(*table) for table in tables(analysis))
    title = escape(f"Timeline of {source}")
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>{body}\n"
    path.write_text(page, encoding="utf-8")


def _table(title: str, heading: Row, rows: list[Row]) -> str:
    head = "".join(_cell("th", text, text) for text in heading)
    lines = "".join("<tr>" + "".join(map(_cell, ["td"] * len(row), row, heading)) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{lines}</table>"


def _cell(tag: str, text: str, column: str) -> str:
    word = " class=word" if column in ("rank", "cause", "whom", "tensor", "server") else ""
    return f"<{tag}{word}>{escape(text)}</{tag}>"
