"""What a rank that has joined adds to the others' reductions: zeros, once per reduction that it hears of."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import MismatchError, ShutdownError
from byteps_like.torch.routes import Request, Route
from byteps_like.worker.api import Declared, Handle, TensorSpec

Message = dict[str, Any]
ORDER = ".order"
"""How the names end under which arenas agree on their layout."""
TUNE = ".tune"
"""How the names end under which ranks are told the next setting: after rounds in which all took part."""
BUFFERS = "buffers."
"""How the names begin under which buffers of modules are handed out."""

PACKED = "packed"
"""How those of all other bytes begin, in which joined ranks take no part."""


def is_for_joined(name: str) -> bool:
    """Whether ranks that have joined take part in broadcasts of that name."""
    return name.endswith((ORDER, TUNE)) or name.startswith(BUFFERS)


class Shadows:
    """This rank's part, in zeros, in reductions that others have started."""

    def __init__(self, routes: list[Route], uses: Counter[tuple[int, str, int]]) -> None:
        self._routes, self._uses = routes, uses
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}
        self._newest: dict[tuple[int, str, int], Handle] = {}
        self._given_up: set[str] = set()

    def start(self, notice: Message) -> bool:
        """Takes part in what `notice` tells of, unless another rank has told of it before. False: it can't."""
        number, name, op = notice["route"], notice["name"], Op(notice["op"])
        if name in self._given_up:
            return True
        # What this rank has made itself, or been told of before, is behind it.
        due = [part for part in range(*notice["parts"]) if self._uses[number, name, part] == notice["use"]]
        if due and op is Op.BROADCAST and not is_for_joined(name):
            return False
        route, spec = self._routes[number], _spec(notice)
        declared = route.worker.placed(route.declare([spec])[0], follows=False)
        buffer = self._buffers.setdefault(
            (number, name), torch.zeros(max(spec.nbytes, 1), dtype=torch.uint8, device="cpu")
        )
        for part in due:
            key = (number, name, part)
            self._uses[key] += 1
            self._clear(key, declared, buffer)
            parts = range(part, part + 1) if declared.partitions else range(0)
            request = Request(notice["root"], parts, 0)
            self._newest[key] = route.launch(declared, buffer.data_ptr(), op, request)
        return True

    def _clear(self, key: tuple[int, str, int], declared: Declared, buffer: torch.Tensor) -> None:
        """Zeros again where the last result landed; the others would not have begun anew before it was complete."""
        if key in self._newest:
            self._newest[key].wait()
            piece = declared.partitions[key[2]] if declared.partitions else None
            if piece is not None:
                buffer[piece.offset : piece.offset + piece.nbytes].zero_()

    def give_up(self, name: str) -> None:
        """The others disagree on what is in flight under `name`, which none of them will use again."""
        self._given_up.add(name)
        error = MismatchError(f"{name!r}: the ranks that have called it disagree", key=name)
        for (_, known, _), handle in self._newest.items():
            if known == name:
                handle.give_up(error)

    def _end(self, key: tuple[int, str, int], handle: Handle) -> None:
        number, name, _ = key
        if name not in self._given_up:
            return handle.wait()
        with suppress(MismatchError, ShutdownError):  # raised by those who have made the calls
            handle.wait()
        self._routes[number].retire(name)
        return None

    def finish(self) -> list[tuple[str, list[int]]]:
        """Waits for all; the orders of arenas that were agreed on."""
        for key, handle in self._newest.items():
            self._end(key, handle)
        return [
            (name.removesuffix(ORDER), buffer.view(torch.int64).tolist())
            for (_, name), buffer in self._buffers.items()
            if name.endswith(ORDER)
        ]


def _spec(notice: Message) -> TensorSpec:
    return TensorSpec(
        notice["name"],
        DType(notice["dtype"]),
        tuple(notice["shape"]),
        codec=notice["codec"],
        says_all=notice["says_all"],
    )
