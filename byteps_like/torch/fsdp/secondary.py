"""Whether backward gathers weights within the host (hpZ), as the user has said that it does."""

from __future__ import annotations

from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.c10d.process_group import ProcessGroup
from byteps_like.torch.fsdp.hosts import crosses_hosts, even_hosts


class Secondary:
    """Of one FSDP module. FSDP2 has the second shard itself, but can't be told of it after `fully_shard`.

    A forward gathers across hosts once; a further time, before gradients are reduced, was backward's, unless that has
    gathered within the host.
    """

    def __init__(self, name: str, wanted: bool) -> None:
        self._name, self._wanted = name, wanted
        self._forwards = self._across = self._within = 0

    def forward(self, *_: Any) -> None:
        """A hook: a forward of the module begins."""
        self._forwards += 1

    def gathers(self, group: ProcessGroup) -> None:
        """Its weights are gathered."""
        if crosses_hosts(group):
            self._across += 1
        else:
            self._within += 1

    def reduces(self, group: ProcessGroup) -> None:
        """Its gradients are reduced. Raises InvalidArgumentError where a secondary shard could be, but isn't."""
        missed = self._wanted and self._across > self._forwards and not self._within
        self._forwards = self._across = self._within = 0
        each = even_hosts(group) if missed else None
        if each is not None:
            raise InvalidArgumentError(
                f"compress_fsdp(secondary=True): backward of {self._name} has gathered its weights across hosts; shard"
                f" it by fully_shard(module, reshard_after_forward={each}), which byteps_like.torch.ranks_per_host()"
                " gives, or leave secondary out",
                operation="reduce_scatter",
            )
