"""What follows a reducer's rounds, by what was asked for and the settings: tuning, or probing of codecs; watching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byteps_like.torch.probing import probe
from byteps_like.torch.tuning import Tune, attach
from byteps_like.torch.watching import watch

if TYPE_CHECKING:
    from byteps_like.torch.reducer import GradientReducer


def follow(reducer: GradientReducer, tune: Tune | None) -> None:
    """Attaches them. Where it is tuned, the tuner finds out whether codecs pay. Watching comes last: what it samples is
    laid out as the others leave it."""
    runtime = reducer.runtime
    if not attach(reducer, tune):
        probe(reducer)
    watch(reducer, runtime.config.compression_monitor)
