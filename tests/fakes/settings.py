"""Settings that change under a runtime, as no program can change them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from byteps_like.torch.job.runtime import Runtime


def configure(runtime: Runtime, **settings: Any) -> None:
    """`runtime` has these settings of Config from here on."""
    runtime.config = replace(runtime.config, **settings)
