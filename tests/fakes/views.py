"""Views as the scheduler would hand them out, made of member numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byteps_like.control.types import Member, MemberRole, View


def view_of(
    workers: Sequence[int], servers: Mapping[int, int] | None = None, number: int = 1, partition_bytes: int = 4096
) -> View:
    """View `number` of the workers with these member numbers, by rank, and of `servers`: shards by member number.

    Each member is on a host of its own.
    """
    return View(
        "job",
        number,
        tuple(_member(MemberRole.WORKER, rank, member) for rank, member in enumerate(workers)),
        tuple(_member(MemberRole.SERVER, rank, *item) for rank, item in enumerate((servers or {}).items())),
        {"partition_bytes": str(partition_bytes)},
    )


def _member(role: MemberRole, rank: int, number: int, shards: int = 0) -> Member:
    urls = (f"tcp://host-{number}:1",) if shards else ()
    return Member(role, rank, f"boot-{number}", f"host-{number}", 100 + number, urls, shards, number=number)
