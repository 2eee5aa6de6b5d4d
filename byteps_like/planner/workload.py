"""A training step as the network sees it: layers with parameters, and how long each computes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from byteps_like.errors import InvalidArgumentError

ITEMSIZE = 4
"""Bytes of a gradient's element: fp32."""


@dataclass(frozen=True)
class Layer:
    """What is computed in one piece and whose gradients become ready together.

    `parameters` are (name, shape). `forward` and `backward` are seconds per step; of a shipped model, FLOPs per unit
    until `Workload.scaled` has given them seconds.
    """

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    forward: float
    backward: float

    @property
    def nbytes(self) -> int:
        """Bytes of the layer's gradients."""
        return ITEMSIZE * sum(math.prod(shape) for _, shape in self.parameters)

    @property
    def compute(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Workload:
    """A model's training step on one worker: its layers from the input on, and `batch` units ("images", "tokens")."""

    name: str
    layers: tuple[Layer, ...]
    batch: int
    unit: str

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients, in fp32."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return self.nbytes // ITEMSIZE

    @property
    def compute(self) -> float:
        """Forward and backward of all layers; in seconds, or in FLOPs per unit for a shipped model."""
        return sum(layer.compute for layer in self.layers)

    def scaled(self, *, total_bytes: float | None = None, compute_seconds: float | None = None) -> Workload:
        """The same shape of step with about `total_bytes` of gradients, and a step's compute of `compute_seconds`.

        Bytes shrink or grow along each parameter's longest dimension, so matrices stay matrices; the total is met
        within a few percent down to 1 % of the model's size. Raises InvalidArgumentError unless both are positive.
        """
        for name, value in {"total_bytes": total_bytes, "compute_seconds": compute_seconds}.items():
            if value is not None and not value > 0:
                raise InvalidArgumentError(f"{name}={value} must be more than 0")
        bytes_factor = 1.0 if total_bytes is None else total_bytes / self.nbytes
        time_factor = 1.0 if compute_seconds is None else compute_seconds / self.compute
        layers = tuple(
            Layer(
                layer.name,
                tuple((name, _resized(shape, bytes_factor)) for name, shape in layer.parameters),
                layer.forward * time_factor,
                layer.backward * time_factor,
            )
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def save(self, path: str | Path) -> None:
        """Writes JSON: name, batch, unit, and of each layer name, parameters, forward, backward."""
        layers = [
            {
                "name": layer.name,
                "parameters": [[name, list(shape)] for name, shape in layer.parameters],
                "forward": layer.forward,
                "backward": layer.backward,
            }
            for layer in self.layers
        ]
        content = {"name": self.name, "batch": self.batch, "unit": self.unit, "layers": layers}
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Workload:
        """What `save` wrote. Raises InvalidArgumentError, naming the file, for anything else."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            layers = tuple(_layer(item) for item in content["layers"])
            return cls(str(content["name"]), layers, int(content["batch"]), str(content["unit"]))
        except OSError as error:
            raise InvalidArgumentError(f"can't read the workload {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgumentError(f"{path} is not a saved workload: {error!r}") from error


def _layer(item: dict[str, Any]) -> Layer:
    parameters = tuple((str(name), tuple(int(size) for size in shape)) for name, shape in item["parameters"])
    layer = Layer(str(item["name"]), parameters, float(item["forward"]), float(item["backward"]))
    sizes = [size for _, shape in parameters for size in shape]
    if min([layer.forward, layer.backward, *sizes]) < 0 or not math.isfinite(layer.compute):
        raise ValueError(f"layer {layer.name!r} has a negative or infinite time or size")
    return layer


def _resized(shape: tuple[int, ...], factor: float) -> tuple[int, ...]:
    if factor == 1.0 or not shape:
        return shape
    longest = max(range(len(shape)), key=shape.__getitem__)
    return tuple(max(1, round(size * factor)) if axis == longest else size for axis, size in enumerate(shape))
