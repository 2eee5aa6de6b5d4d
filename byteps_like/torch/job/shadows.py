"""What a rank that has joined adds to the others' reductions: zeros, once per reduction that it hears of."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import MismatchError, ShutdownError
from byteps_like.torch.job.naming import Claim, NameTable
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import Declared, Handle, TensorSpec

Message = dict[str, Any]
Uses = defaultdict[str, Counter[tuple[int, int]]]
"""How often each partition of a name was used, by the number of its route and its own."""

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


def meeting_of(claim: Claim) -> Message:
    """What a notice says of its name, which is let go of when all ranks have joined, if not before: where ranks meet
    for it, if it is used once."""
    return {"once": claim.place} if claim.once else {"claimed": True}


class Shadows:
    """This rank's part, in zeros, in reductions that others have started."""

    def __init__(self, routes: list[Route], uses: Uses, names: NameTable) -> None:
        self._routes, self._uses, self._names = routes, uses, names
        self._once: set[tuple[int, str]] = set()
        """Names that are used once, and of these:"""
        self._passing: dict[tuple[int, str], list[int]] = {}
        """The partitions of those whose use may not be over here."""
        self._claimed: set[tuple[int, str]] = set()
        """Names that are used more often, but by nobody once all ranks have joined."""
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}
        self._newest: dict[tuple[int, str, int], Handle] = {}
        self._given_up: set[str] = set()

    def start(self, notice: Message) -> bool:
        """Takes part in what `notice` tells of, unless another rank has told of it before. False: it can't."""
        number, name, op = notice["route"], notice["name"], Op(notice["op"])
        if name in self._given_up:
            return True
        self._let_go_of_ended()
        due = self._due(notice)
        if not due and "once" in notice:
            return True  # this rank may have let go of the name
        if due and op is Op.BROADCAST and not is_for_joined(name):
            return False
        route, spec = self._routes[number], _spec(notice)
        declared = route.worker.placed(route.declare([spec])[0], follows=False)
        buffer = self._buffers.setdefault(
            (number, name), torch.zeros(max(spec.nbytes, 1), dtype=torch.uint8, device="cpu")
        )
        self._count(notice, due)
        for part in due:
            key = (number, name, part)
            self._clear(key, declared, buffer)
            if name in self._given_up:
                return True
            parts = range(part, part + 1) if declared.partitions else range(0)
            request = Request(notice["root"], parts, 0)
            self._newest[key] = route.launch(declared, buffer.data_ptr(), op, request)
        return True

    def _due(self, notice: Message) -> list[int]:
        """Partitions that this rank has to bring: what it has made itself, or been told of before, is behind it."""
        number, name, parts = notice["route"], notice["name"], range(*notice["parts"])
        if "once" in notice:
            behind = (number, name) in self._once or self._names.have_begun([tuple(notice["once"])])[0]
            return [] if behind else list(parts)
        uses = self._uses[name]
        return [part for part in parts if uses[number, part] == notice["use"]]

    def _count(self, notice: Message, due: list[int]) -> None:
        number, name = notice["route"], notice["name"]
        if "once" in notice:
            self._once.add((number, name))
            self._passing[number, name] = due
            return
        self._uses[name].update((number, part) for part in due)
        if "claimed" in notice:
            self._claimed.add((number, name))

    def _clear(self, key: tuple[int, str, int], declared: Declared, buffer: torch.Tensor) -> None:
        """Zeros again where the last result landed; the others would not have begun anew before it was complete."""
        if key in self._newest:
            self._end(key, self._newest[key])
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
        """Waits for it. What the others disagree on is raised by those who have made the calls; it may fail here before
        they have said that they give it up."""
        number, name, _ = key
        try:
            handle.wait()
        except MismatchError:
            self._given_up.add(name)
        except ShutdownError:
            if name not in self._given_up:
                raise
        if name in self._given_up:
            self._routes[number].retire(name)

    def _let_go_of_ended(self) -> None:
        for (number, name), parts in list(self._passing.items()):
            keys = [(number, name, part) for part in parts]
            if name in self._given_up or not all(self._newest[key].done() for key in keys):
                continue
            for key in keys:
                self._end(key, self._newest.pop(key))
            del self._passing[number, name], self._buffers[number, name]
            self._routes[number].retire(name)

    def let_go(self) -> list[str]:
        """After `finish`, of names that no rank will use again; those that are used more than once."""
        for number, name in [*self._passing, *self._claimed]:
            self._routes[number].retire(name)
        return [name for _, name in self._claimed]

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
