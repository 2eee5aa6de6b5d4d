"""Sends and receives of a process group: matched by peer, tag and order, never queued behind collectives."""

from __future__ import annotations

from byteps_like.torch.c10d.launch import Launching, Tensors
from byteps_like.torch.c10d.routing import collective
from byteps_like.torch.c10d.tensors import one
from byteps_like.torch.c10d.work import Work


class PointToPoint(Launching):
    """Mixed into ProcessGroup."""

    @collective
    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        """To group rank `peer`. Done when it may be changed again: if longer than 64 KiB, once it is received."""
        tensor = one(tensors, "send", "tensors")
        operation = self.messages.send(tensor.data_ptr(), tensor.nbytes, peer, tag, self.defaults.default)
        return self._work(operation, [tensor], None)

    @collective
    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        """From group rank `peer`, a message of just the tensor's size."""
        tensor = one(tensors, "recv", "tensors")
        operation = self.messages.receive(tensor.data_ptr(), tensor.nbytes, peer, tag, self.defaults.default)
        return self._work(operation, [tensor], None)

    @collective
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """From whoever sends first; `source_rank()` of the work tells who."""
        tensor = one(tensors, "recv_anysource", "tensors")
        operation = self.messages.receive(tensor.data_ptr(), tensor.nbytes, None, tag, self.defaults.default)
        return self._work(operation, [tensor], None)
