"""Methods that torch.compile leaves alone: called as they are, never traced."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def opaque(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, which Dynamo neither inlines nor compiles, nor what it calls.

    As torch.compiler.disable, whose decoration imports Dynamo (a second of CPU in every process) and whose wrapper
    every call goes through. Where this torch lacks the hook, it is that decorator.
    """
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return cast(Callable[Arguments, Result], torch.compiler.disable(function))  # type: ignore[no-untyped-call]
    plain = cast(FunctionType, function)
    set_code_exec_strategy(plain.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    plain._torchdynamo_disable = True  # type: ignore[attr-defined]
    plain._torchdynamo_disable_msg = "a collective runs outside compiled graphs"  # type: ignore[attr-defined]
    return function
