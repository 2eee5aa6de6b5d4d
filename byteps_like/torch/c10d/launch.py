"""What every call of a process group needs: the group, the options of the call, the Work that torch gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group
from byteps_like.torch.c10d.device_calls import DeviceCalls, current_load
from byteps_like.torch.c10d.device_work import DeviceWork
from byteps_like.torch.c10d.futures import Callbacks
from byteps_like.torch.c10d.lanes import Lanes
from byteps_like.torch.c10d.options import CallDefaults, GroupOptions
from byteps_like.torch.c10d.sparse import SparseSums
from byteps_like.torch.c10d.work import CoalescedWork, Several, Work

Tensors = torch.Tensor | Sequence[torch.Tensor]


class Launching:
    """The ground of ProcessGroup's mixins. Nothing else here is overridden."""

    lanes: Lanes
    callbacks: Callbacks
    options: GroupOptions
    defaults: CallDefaults
    aboard: DeviceCalls | None
    """Calls with tensors on devices, once there are any."""
    _coalescing: CoalescedWork | None

    def sparse_sums(self) -> SparseSums:
        """The sums of sparse tensors, made when there is one."""
        raise NotImplementedError

    @property
    def group(self) -> Group:
        """What a collective of this thread goes to."""
        return self.lanes.current if self.aboard is None else self.aboard.lane(self.lanes.current)

    @property
    def messages(self) -> Group:
        """What sends and receives go to."""
        return self.lanes.first if self.aboard is None else self.aboard.lane(self.lanes.first)

    def _options(self, opts: Any) -> CallOptions:
        return self.defaults.get(getattr(opts, "timeout", None), waits=not getattr(opts, "asyncOp", True))

    def _work(self, operation: CollectiveOperation, results: list[torch.Tensor], held: object) -> Work:
        load = None if self.aboard is None else current_load()
        if load is None:
            work = Work(operation, results, held, self.callbacks)
        else:
            work = DeviceWork(operation, load.originals(results), (held, load), self.callbacks)
        return self._joined(work)

    def _joined(self, work: Work) -> Work:
        """What the caller gets: the work, or all that is being coalesced."""
        return work if self._coalescing is None else self._coalescing.add(work)

    def _started(self, works: Sequence[Work], results: list[torch.Tensor]) -> Work:
        if any(isinstance(work, DeviceWork) for work in works):
            together = CoalescedWork(self.callbacks)  # which has streams wait for each
            for work in works:
                together.add(work)
            return together.close()
        return self._work(Several([work.operation for work in works]), results, works)
