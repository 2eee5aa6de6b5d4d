"""What follows a reducer's rounds, by what was asked for and the settings: tuning, or probing of codecs; watching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byteps_like.torch.adapt.codec_monitor import watch
from byteps_like.torch.adapt.codec_trial import probe
from byteps_like.torch.adapt.tuning import Tune, attach

if TYPE_CHECKING:
    from byteps_like.torch.reduction.api import Adaptable


def follow(reducer: Adaptable, tune: Tune | None) -> None:
    """Attaches them. Where it is tuned, the tuner finds out whether codecs pay. Watching comes last: what it samples is
    laid out as the others leave it."""
    runtime = reducer.runtime
    if not attach(reducer, tune):
        probe(reducer)
    watch(reducer, runtime.config.compression_monitor)
