"""The states of a process's random number generators: torch's, on the CPU and on GPUs, NumPy's and Python's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """As they are now: a tree of plain values and tensors."""
    name, keys, *rest = np.random.get_state(legacy=True)
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).copy()), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def go_on_from(states: dict[str, Any]) -> None:
    """Makes them those. Of GPUs that this process has not, they are left out."""
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    random.setstate(states["python"])
    if torch.cuda.is_available():
        for device, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
