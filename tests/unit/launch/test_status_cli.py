"""The table of `byteps-like status`: one row per member, made of what it reports."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from byteps_like.cli.status import _COLUMNS, _cells, _table
from byteps_like.control.calls.status import JobStatus, MemberStatus
from byteps_like.control.members.seats import Waiting
from byteps_like.control.types import Member, MemberRole
from byteps_like.launch.monitor import StatusSample


def _row(**stats: float) -> dict[str, str]:
    member = Member(role=MemberRole.WORKER, rank=1, host_id="a", host="node1", pid=7)
    status = MemberStatus(member=member, state="running", heartbeat_age=0.25, stats=stats, waiting=None)
    return {name: str(cell) for name, cell in zip(_COLUMNS, _cells(status), strict=True)}


def test_links_are_shown_by_transport():
    """What a worker's links go by: how one sees that RDMA is used."""
    row = _row(links_tcp=1.0, links_rdma=2.0, route_server=1.0, payload_sent=2e9)
    assert row["links"] == "rdma 2, tcp 1"
    assert row["GB sent"] == "2.00"


def test_members_that_report_no_links_show_none():
    """A server's links are those of its workers."""
    assert _row(referenced=1e9)["links"] == ""


def test_it_says_how_many_values_have_copies() -> None:
    def server(rank: int, **stats: float) -> MemberStatus:
        member = Member(role=MemberRole.SERVER, rank=rank, host_id="a", host="node", pid=1)
        return MemberStatus(member=member, state="running", heartbeat_age=0.2, stats=stats, waiting=None)

    def notes(*servers: MemberStatus) -> list[str]:
        status = JobStatus("run-1", 1, "running", 2, len(servers), servers, "", {}, 1.0, {})
        out = StringIO()
        Console(file=out, width=80).print(_table(None, StatusSample(status, 0.0)))
        return [line.rstrip() for line in out.getvalue().splitlines()][2 + len(servers) :]

    found = notes(server(0, replicated=6, copied=1e9), server(1, replicated=8, copied=2e8), server(2, copied=0))
    assert " ".join(found) == "values with a copy elsewhere: 6 of server 0, 8 of server 1; 1.20 GB went there"
    assert notes(server(0, replicated=0, copied=0)) == []


def test_it_fits_80_columns() -> None:
    """Names, numbers and states of a large job in one line each; of a long host name a part is left out."""
    stats = {"links_shm": 1.0, "links_tcp": 3.0, "route_server": 1.0, "payload_sent": 123.4e9}
    stats |= {"payload_received": 123.4e9, "referenced": 44e9}
    waiting: Waiting = {"name": "layer4.2.conv3.weight", "round": 1034}
    members = tuple(
        MemberStatus(
            member=Member(role=MemberRole.WORKER, rank=rank, host_id="a", host="gpu-node-0017.cluster", pid=1234567),
            state="suspected" if rank == 127 else "running",
            heartbeat_age=0.2,
            stats=stats,
            waiting=waiting if rank == 126 else None,
        )
        for rank in (126, 127)
    )
    status = JobStatus("run-1", 1, "running", 2, 1, members, "worker 3 left", {}, 1.0, {"strangers_refused": 3})
    out = StringIO()
    Console(file=out, width=80).print(_table(None, StatusSample(status, 0.0)))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[1].split() == ["member", "process", "state", "GB", "sent", "received", "in", "place", "links"]
    assert lines[2].split()[:2] == ["worker", "126"] and lines[2].endswith("123.40   123.40    44.00 shm 1, tcp 3")
    assert "suspected" in lines[3] and "1234567@gpu-node-…" in lines[3]
    assert lines[4:] == [
        "gradients by server",
        "worker 126 waits for layer4.2.conv3.weight round 1034",
        "kept out, having proven nothing: 3 by the scheduler",
        "worker 3 left",
    ]
