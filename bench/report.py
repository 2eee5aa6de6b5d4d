"""What all benchmarks report with: `byteps_like.bench.report`, by a name of this folder."""

from byteps_like.bench.report import (
    OUT,
    ROOT,
    Spread,
    context,
    cores,
    interleave,
    plot_bars,
    plot_curves,
    plot_lines,
    plot_points,
    plot_scatter,
    print_table,
    show_bytes,
    show_spread,
    show_time,
    write_json_lines,
)

__all__ = [
    "OUT", "ROOT", "Spread", "context", "cores", "interleave", "plot_bars", "plot_curves", "plot_lines", "plot_points",
    "plot_scatter", "print_table", "show_bytes", "show_spread", "show_time", "write_json_lines",
]  # fmt: skip
