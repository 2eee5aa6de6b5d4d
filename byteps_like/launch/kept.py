"""What a job's servers have counted of the values that they keep, store by store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from byteps_like.config import Config
from byteps_like.control.calls.client import query_names
from byteps_like.control.types import Member
from byteps_like.errors import BytePSLikeError
from byteps_like.launch.monitor import StatusSample
from byteps_like.server.admin import server_kept
from byteps_like.server.figures import KeptFigures, merged_by

_SECONDS = 2.0
"""For one server to answer."""
_WITH_PARTS = "store/"
"""How names of tensors begin that have their store's name, and their own after the last slash."""


def with_kept(config: Config, sample: StatusSample) -> StatusSample:
    """The sample, with what all servers that answer have counted, and which ones don't. Raises what `query_names`
    does."""
    if sample.status.state != "running":
        return sample
    servers = [one.member for one in sample.status.members if one.member.admin and one.state == "running"]
    silent: list[str] = []
    found = [pair for server in servers for pair in _asked(config, server, silent)]
    names = query_names(config, sorted({tensor for tensor, _ in found})) if found else {}
    kept = merged_by((store_of(names, tensor), figures) for tensor, figures in found)
    return replace(sample, kept=dict(sorted(kept.items())), silent=tuple(silent))


def store_of(names: Mapping[int, str], tensor: int) -> str:
    """Under which name the tensor of this id is counted: "store/NAME" with all of its tensors, or the tensor's own."""
    name = names.get(tensor, f"tensor {tensor}")
    return name.rpartition("/")[0] if name.startswith(_WITH_PARTS) else name


def _asked(config: Config, server: Member, silent: list[str]) -> Iterator[tuple[int, KeptFigures]]:
    try:
        yield from server_kept(config, server.admin, _SECONDS).items()
    except BytePSLikeError:
        silent.append(f"server {server.rank} does not answer at {server.admin}: what it has counted is missing above")
