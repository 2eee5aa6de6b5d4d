"""What only PyTorch knows of a step, for the timeline: forward and backward of each layer, the update, where steps end.

Hooks are put in when recording is ordered, between two steps, and taken out when it has ended; without them nothing of
this runs. A layer is a module with parameters of its own and no such module in it. Modules without parameters
(activations, pooling) count to the layer before them. Backward of a layer reaches from the last gradient of the layer
behind it to its own last gradient.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.hooks import RemovableHandle

from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.orders import NEXT, RecordingOrder
from byteps_like.timeline.perfetto import merged, write
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.job import runtime as _runtime

_now = time.monotonic_ns


class _Span:
    """A layer's work that goes on: it is recorded when the next one begins."""

    def __init__(self, category: str, layer: str, begin: int, end: int) -> None:
        self.category, self.layer, self.begin, self.end = category, layer, begin, end


class _Step(threading.local):
    """Where the step of this thread stands. Times in ns; None: not known."""

    began: int | None = None
    forward: int = 0
    update: int = 0
    gradient: int | None = None
    backward: bool = False
    span: _Span | None = None


class _Hooks:
    """All hooks of this process, and the layers they have seen."""

    def __init__(self) -> None:
        self.step = _Step()
        self._layers: dict[int, str | None] = {}  # by id; None: of another module
        self._roots: dict[int, torch.nn.Module] = {}  # held, so that ids stay theirs
        self._handles: list[RemovableHandle] = []
        self._parameters: dict[int, RemovableHandle] = {}

    def put_in(self) -> None:
        if self._handles:
            return
        self.step = _Step()
        self._handles = [
            modules.register_module_forward_pre_hook(self._before_forward),
            modules.register_module_forward_hook(self._after_forward),
            optimizers.register_optimizer_step_pre_hook(self._before_update),
            optimizers.register_optimizer_step_post_hook(self._after_update),
        ]

    def take_out(self) -> None:
        for handle in [*self._handles, *self._parameters.values()]:
            handle.remove()
        self._handles.clear()
        self._parameters.clear()
        self._layers.clear()
        self._roots.clear()

    # --- layers ---

    def _learn(self, root: torch.nn.Module) -> None:
        """The names of all layers of a model that is called for the first time."""
        self._roots[id(root)] = root
        for name, module in root.named_modules():
            layer = name.removeprefix("module.") or type(module).__name__
            own = list(module.parameters(recurse=False))
            is_layer = own and sum(1 for _ in module.parameters()) == len(own)
            self._layers.setdefault(id(module), layer if is_layer else None)
            for parameter in own:
                self._watch(parameter, layer)

    def _watch(self, parameter: torch.Tensor, layer: str) -> None:
        if id(parameter) in self._parameters or not (parameter.requires_grad and parameter.is_leaf):
            return
        register: Callable[..., RemovableHandle] = parameter.register_post_accumulate_grad_hook
        self._parameters[id(parameter)] = register(lambda _: self._after_gradient(layer))

    # --- what happens ---

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        step = self.step
        if id(module) not in self._layers:
            self._learn(module)
        step.forward = _now()
        if step.began is None and torch.is_grad_enabled():
            step.began = step.forward

    def _after_forward(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        layer, step = self._layers.get(id(module)), self.step
        if layer is not None:
            self._record(_Span("forward", layer, step.forward, _now()))
        elif step.span is not None and step.span.category == "forward" and not module._modules:
            step.span.end = _now()
        if id(module) in self._roots:
            step.gradient = None
            first: Any = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, torch.Tensor) and first.requires_grad:
                watch: Callable[..., Any] = first.register_hook
                watch(self._before_gradient)

    def _before_gradient(self, _: torch.Tensor) -> None:
        if self.step.gradient is None:
            self.step.gradient = _now()

    def _after_gradient(self, layer: str) -> None:
        step, now = self.step, _now()
        step.backward = True
        span = step.span
        if span is not None and span.category == "backward" and span.layer == layer:
            span.end = now
        else:
            self._record(_Span("backward", layer, now if step.gradient is None else step.gradient, now))
        step.gradient = now

    def _before_update(self, *_: Any) -> None:
        self._record(None)
        self.step.update = _now()

    def _after_update(self, *_: Any) -> None:
        now, step, rank = _now(), self.step, _rank()
        recorder.event("update", "update", step.update, now - step.update, rank, layer="")
        if not step.backward:
            return  # across the barrier parameters are updated one after the other: the first ends the step
        if step.began is not None:
            name = f"step {recorder.steps}"
            recorder.event("step", name, step.began, now - step.began, rank, step=recorder.steps)
        recorder.step(whole=step.began is not None)
        step.began, step.gradient, step.backward = now, None, False

    def _record(self, span: _Span | None) -> None:
        """The span before this one has ended."""
        done, self.step.span = self.step.span, span
        if done is not None:
            recorder.event(done.category, done.layer, done.begin, done.end - done.begin, _rank(), layer=done.layer)


_hooks = _Hooks()


def follow_recorder() -> None:
    """Puts the hooks in, or takes them out, as the recorder wants it. On the thread that trains, between two steps."""
    recorder.changed = False
    (_hooks.put_in if recorder.ordered else _hooks.take_out)()


def trace(path: str, steps: int) -> None:
    """Records a timeline of the next `steps` training steps, on all ranks and servers.

        bps.trace("trace", steps=10)  # then: byteps-like timeline report trace

    path: a directory, or a .json file, on each host. docs/how-to/timeline.md says how the parts are merged and read.
    steps: number of steps, from 1. A step ends with an optimizer's `step()`.

    Call it between two steps: on rank 0, or on all ranks so that recording starts with the same step everywhere.
    Returns at once. Does nothing if a timeline is being recorded already. Raises InvalidArgumentError if `steps` is
    less than 1.
    """
    if steps < 1:
        raise InvalidArgumentError(f"trace(steps={steps}): at least one step")
    recorder.take(RecordingOrder(path, NEXT, steps))
    follow_recorder()
    _hooks.step.began = _now()


_timeline: Path | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:  # noqa: ARG001 - Horovod's
    """Records this rank from now until `stop_timeline`, as in Horovod. `mark_cycles` is ignored.

    Does nothing while a timeline is being recorded already.
    """
    global _timeline
    if recorder.ordered:
        return
    _timeline = Path(file_path)
    recorder.take(RecordingOrder(str(_parts(_timeline)), alone=True))
    recorder.begin()
    follow_recorder()


def stop_timeline() -> None:
    """Stops the recording that `start_timeline` started. On rank 0, writes the trace to `file_path`.

    The trace holds the parts in the directory `file_path`.parts: this rank's, and those that other ranks of the host
    with the same path have written so far. Does nothing if no timeline was started. Raises OSError if the file can't be
    written.
    """
    global _timeline
    path, _timeline = _timeline, None
    if path is None:
        return
    recorder.stop()
    follow_recorder()
    if _rank() == 0:
        write(merged(_parts(path)), path)


def _parts(path: Path) -> Path:
    return path.with_name(path.name + ".parts")


def _rank() -> int:
    runtime = _runtime.if_installed()
    return recorder.member if runtime is None else runtime.worker.rank
