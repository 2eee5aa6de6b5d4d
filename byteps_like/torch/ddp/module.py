"""DistributedDataParallel: a module whose gradients are averaged when backward ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.utils import _pytree

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.adapt.attach import follow
from byteps_like.torch.adapt.codec_monitor import CodecReport, report
from byteps_like.torch.adapt.tuning import OFF
from byteps_like.torch.compression.rules import rules_for_averages
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.apart import apart
from byteps_like.torch.ops.packed import broadcast_buffers
from byteps_like.torch.optimizer.broadcasts import broadcast_parameters
from byteps_like.torch.reduction.feedback_state import restore, saved
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.reducer import GradientReducer


class DistributedDataParallel(torch.nn.Module):
    """Wraps `module`: broadcasts rank 0's parameters and buffers at the start, and averages gradients in backward.

    Gradients are sent during backward and are complete when it returns; a plain optimizer then makes the step. A
    parameter that no rank used keeps its `p.grad`; one that only some ranks used counts as zeros on the others, so
    unused parameters need no setting: `find_unused_parameters` and torch's other tuning arguments are accepted and
    ignored. `broadcast_buffers` broadcasts rank 0's buffers before each forward in training; once rank 0 has called
    `join()`, each rank keeps its own. Don't keep a reference to a `p.grad` beyond the next backward, because its
    memory is reused. `route` and `compression` are those of DistributedOptimizer. Error feedback is off by default,
    because the optimizer is unknown here, and its state is in no state_dict, but in `codec_state()`.

    Names in `state_dict()` begin with `module.`, as torch's do. Blocks in the constructor. Raises MismatchError if
    the ranks' modules differ, InvalidArgumentError for `device_ids` other than the one device that the module is on.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: object = None,
        broadcast_buffers: bool = True,
        compression: object = None,
        *,
        find_unused_parameters: bool = False,
        route: str = "auto",
        **tuning: object,
    ) -> None:
        super().__init__()
        del find_unused_parameters
        _check_arguments(module, device_ids, tuning)
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        rules = rules_for_averages(compression)
        rules.check_names(name for name, _ in module.named_parameters())
        with apart():
            broadcast_parameters([*module.named_parameters(), *module.named_buffers()])
            self._reducer = GradientReducer(module.named_parameters, ReducerOptions(rules, route=route))
            follow(self._reducer, OFF)
        self._end = _EndOfBackward(self._reducer)
        self._reducer.on_first = self._end.arm

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output. In training, and outside `no_sync`, its buffers are rank 0's. Blocks for those."""
        synchronizes = torch.is_grad_enabled() and not self._reducer.paused
        if synchronizes and self.training and self.broadcast_buffers:
            self._broadcast_buffers()
        output = self.module(*args, **kwargs)
        if synchronizes:
            self._end.watch(output)
        return output

    def _broadcast_buffers(self) -> None:
        buffers = list(self.module.buffers())
        if buffers and _runtime.size() > 1:
            broadcast_buffers(_runtime.current(), buffers, root=0)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block gradients add up on this rank; the next backward outside it averages their sum."""
        before, self._reducer.paused = self._reducer.paused, True
        try:
            yield
        finally:
            self._reducer.paused = before

    def synchronize(self) -> None:
        """Averages gradients that are not averaged yet. BytePS's; backward does it by itself here."""
        if self._reducer.touched:
            self._reducer.synchronize()

    @property
    def is_reducing(self) -> bool:
        """Whether gradients are on their way: from the first of a backward to the last."""
        return self._reducer.active

    def compression_report(self) -> list[CodecReport]:
        """As DistributedOptimizer's."""
        return report(self._reducer)

    def codec_state(self) -> dict[str, Any]:
        """What codecs remember on this rank: what a distributed optimizer has in its `state_dict()`. Empty if that is
        nothing. Call it between steps."""
        return saved(self._reducer)

    def load_codec_state(self, memory: dict[str, Any] | None) -> None:
        """Takes what `codec_state` has given, on this rank of as many; otherwise what is the same on all ranks. All
        ranks call it, between steps."""
        restore(self._reducer, memory or None)

    def close(self) -> None:
        """Removes all hooks: gradients of the module are not averaged any more. Idempotent."""
        self._reducer.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise InvalidArgumentError(_NO_COPY)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidArgumentError(_NO_COPY)


_NO_COPY = "DistributedDataParallel can't be copied or pickled; copy its .module, or save its state_dict()"

_TUNING = {
    "bucket_cap_mb", "check_reduction", "dim", "gradient_as_bucket_view", "init_sync", "output_device", "static_graph",
}  # fmt: skip


def _check_arguments(module: torch.nn.Module, device_ids: Any, tuning: dict[str, object]) -> None:
    places = {parameter.device for parameter in module.parameters()}
    wanted = {torch.device("cuda", item) if isinstance(item, int) else torch.device(item) for item in device_ids or ()}
    if wanted and places != wanted:
        raise InvalidArgumentError(
            f"device_ids={device_ids!r}: the module's parameters are on {', '.join(map(str, places))}; move it to the"
            " rank's device first, or leave device_ids out"
        )
    for name in tuning.keys() - _TUNING:
        raise InvalidArgumentError(f"DistributedDataParallel has no argument {name}; operations go over all ranks")


class _EndOfBackward:
    """Has the reducer synchronize once at the end of each backward pass that touches its parameters.

    A backward pass is noticed at the module's output, so that it is the outermost one if it is nested (activation
    checkpointing), and so that a rank whose loss used no parameter takes part; else at its first gradient.
    """

    def __init__(self, reducer: GradientReducer) -> None:
        self._reducer = weakref.ref(reducer)
        self._armed = False

    def watch(self, output: Any) -> None:
        """Takes notice of backward passes that come through `output`, any nest of tensors."""
        # A backward pass that failed never came to its end.
        self._armed = False
        for leaf in _pytree.tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.is_leaf:
                register: Callable[[Callable[[torch.Tensor], None]], object] = leaf.register_hook
                register(lambda _: self.arm())

    def arm(self) -> None:
        """Called within backward; only the first call in each pass counts."""
        reducer = self._reducer()
        if not self._armed and reducer is not None and not reducer.paused:
            self._armed = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._armed = False
        reducer = self._reducer()
        if reducer is not None:
            reducer.synchronize()
