"""A fragment of a rank's weights, and what is under way of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from byteps_like.torch.low_comm.fragments import Fragment
from byteps_like.torch.low_comm.rounds import SettledChange

_PLAIN = ("begun", "arrived", "version", "staleness", "left_out", "samples", "steps")
"""Attributes that are saved as they are."""


class Travel:
    """One thread at a time."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.begun: int | None = None
        """The step after which its contribution went; None: all have landed."""
        self.arrived: int | None = None
        """The version that is there, though it hasn't landed yet."""
        self.version = self.staleness = self.left_out = 0
        self.contributors: tuple[int, ...] = ()
        self.samples, self.steps = 0.0, 0
        """Since the last contribution."""

    def begin(self, step: int) -> None:
        """Its contribution goes."""
        self.begun = step
        self.samples, self.steps = 0.0, 0

    def land(self, version: int, common: torch.Tensor, own: float) -> None:
        """The weights become `own` of themselves, and the rest of `common`."""
        self.begun, self.arrived, self.version = None, None, version
        self.fragment.mix(common, own)

    def give_up(self) -> None:
        """Nothing of it lands any more."""
        self.begun = self.arrived = None

    def hear(self, settled: Sequence[SettledChange]) -> None:
        """What has become of contributions."""
        for one in settled:
            self.staleness, self.contributors = one.staleness, one.contributors
            self.left_out += not one.counted

    def state(self) -> dict[str, Any]:
        """All of it, the rank's own weights included: plain values and tensors."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**plain, "contributors": self.contributors, "weights": self.fragment.read()}

    def take(self, state: Mapping[str, Any]) -> None:
        """What `state` has given on this rank, or will give on it."""
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.contributors = tuple(state["contributors"])
        self.fragment.mix(state["weights"], own=0.0)

    def take_place(self, state: Mapping[str, Any], common: torch.Tensor) -> None:
        """What `state` has given on another rank: contributions are due when its are, of weights that are common."""
        anew = {"staleness": 0, "left_out": 0, "samples": 0.0, "steps": 0}
        self.take({**state, **anew, "contributors": (), "weights": common})
