"""One rank of as many as a test says, all of which bring what it brings: sums have a closed form in any view."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from typing import Any

import numpy as np

from byteps_like.collectives.api import Group
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.worker.api import Declared
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.standing import Standing
from tests.fakes.views import view_of


class Lane:
    """Who meets there; what is sent among them comes back as it is."""

    def __init__(self, group: Group, name: str, ranks: tuple[int, ...]) -> None:
        self._group, self.name, self.ranks = group, name, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class MirroredWorker(LocalWorker):
    """`enter` puts another view in force; `lanes` are the groups that were asked for, in order."""

    route = "server"

    def __init__(self, own: int, members: Sequence[int], partition_bytes: int = 1024) -> None:
        super().__init__(partition_bytes)
        self._own = own
        self.lanes: list[Lane] = []
        self.enter(members)

    def enter(self, members: Sequence[int]) -> None:
        """The workers are these from now on, by rank."""
        self.standing: Standing = view_of(members).standing(self._own)

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Any:
        if name.endswith("join"):
            raise InvalidArgumentError("nobody joins here")
        lane = Lane(super().group(name), name, self.standing.ranks if ranks is None else tuple(ranks))
        assert self.standing.rank in lane.ranks
        self.lanes.append(lane)
        return lane

    def push_pull(self, declared: Declared, address: int, op: Op, *, parts: range | None = None, **how: Any) -> Any:
        done = super().push_pull(declared, address, op, parts=parts, **how)
        if op is Op.SUM and declared.spec.dtype is DType.FLOAT32:
            for part in declared.partitions if parts is None else declared.partitions[parts.start : parts.stop]:
                data = (c_float * (part.nbytes // 4)).from_address(address + part.offset)
                np.frombuffer(data, np.float32)[:] *= self.standing.size
        return done
