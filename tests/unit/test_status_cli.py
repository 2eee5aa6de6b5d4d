"""The table of `byteps-like status`: one row per member, made of what it reports."""

from __future__ import annotations

from byteps_like.cli.status import _COLUMNS, _cells
from byteps_like.control.status import MemberStatus
from byteps_like.control.types import Member, MemberRole


def _row(**stats: float) -> dict[str, str]:
    member = Member(role=MemberRole.WORKER, rank=1, host_id="a", host="node1", pid=7)
    status = MemberStatus(member=member, state="running", heartbeat_age=0.25, stats=stats, waiting=None)
    return {name: str(cell) for name, cell in zip(_COLUMNS, _cells(status), strict=True)}


def test_links_are_shown_by_transport():
    """What a worker's links go by: how one sees that RDMA is used."""
    row = _row(links_tcp=1.0, links_rdma=2.0, route_server=1.0, payload_sent=2e9)
    assert row["links"] == "rdma 2, tcp 1"
    assert row["route"] == "server" and row["sent"] == "2.00 GB"


def test_members_that_report_no_links_show_none():
    """A server's links are those of its workers."""
    assert _row(referenced=1e9)["links"] == ""
