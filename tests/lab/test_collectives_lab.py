"""Collectives between hosts: what crosses which link, to the byte and the message, and that the wire agrees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byteps_like.bench import world
from byteps_like.collectives.planning.shape import CallShape
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.dtypes import DType, Op
from byteps_like.launch.lab.hosts import Lab

pytestmark = pytest.mark.timeout(120)
MakeLab = Callable[..., Lab]
# A header for each segment, which is at least so long: shorter than usual, since an all-to-all precedes the ring.
HEADER, SEGMENT = 64, 32 << 10
# What the kernel adds is its own affair: at most 66 bytes for each packet of the least size that fills a line (1,448 of
# them payload) and an acknowledgement for each that comes the other way. Barriers before and after come on top.
OVERHEAD, BARRIERS = 1 + 2 * 66 / 1448, 20_000


def run(lab: Lab, folder: Path, name: str, ranks: int) -> list[Any]:
    script = str(Path(__file__).with_name("collective_rank.py"))
    world.run([sys.executable, script, name], ranks, folder, lab, timeout=100)
    return world.results(folder, ranks)


def words(kind: Kind, counts: tuple[int, ...], op: Op | None, algorithm: str) -> int:
    """Bytes of the call's description, which goes to each peer that is sent something, once."""
    return len(CallShape(kind, len(counts), counts, DType.FLOAT32, op).describe(algorithm))


def data(moved: dict[str, list[int]], described: int) -> list[int]:
    """Payload to each peer without the descriptions."""
    return [max(0, sent - described) for sent in moved["payload_sent"]]


def across(rank: int, sent: list[int], per_host: int) -> int:
    return sum(amount for peer, amount in enumerate(sent) if peer // per_host != rank // per_host)


def test_hierarchical_crosses_the_slow_link_with_a_share_of_the_bytes(make_lab: MakeLab, tmp_path: Path) -> None:
    """2 hosts of 4: a flat ring's rank at the border sends 7/4 of the vector across, here each rank sends 1/4 of it."""
    count, nbytes = 1 << 18, 1 << 20
    found = run(make_lab(2, rate="2gbit"), tmp_path, "two_hosts", 8)
    ring = words(Kind.ALL_REDUCE, (count,), Op.SUM, "ring")
    levels = words(Kind.ALL_REDUCE, (count,), Op.SUM, "hierarchical")
    for rank, moved in enumerate(found):
        flat = data(moved["ring"], ring)
        assert flat == [nbytes * 7 // 4 if peer == (rank + 1) % 8 else 0 for peer in range(8)], rank
        sent = data(moved["hierarchical"], levels)
        assert across(rank, sent, 4) == nbytes // 4, rank
        # Of what a ring of whole hosts would send across, 2(H-1)/H of the vector, it is a quarter.
        assert across(rank, sent, 4) * 4 == nbytes
        assert [amount for peer, amount in enumerate(sent) if peer // 4 != rank // 4 and peer % 4 != rank % 4] == [
            0
        ] * 3
    borders = [across(rank, data(moved["ring"], ring), 4) for rank, moved in enumerate(found)]
    assert borders == [0, 0, 0, nbytes * 7 // 4] * 2
    for host in range(2):
        assert max(moved["hierarchical"]["wire_tx"] for moved in found[4 * host : 4 * host + 4]) <= wire(nbytes)


def test_ranks_of_one_host_send_nothing_over_its_link(make_lab: MakeLab, tmp_path: Path) -> None:
    found = run(make_lab(2, rate="2gbit"), tmp_path, "two_hosts", 8)
    for rank, moved in enumerate(found):
        inner = moved["inner"]
        assert across(rank, inner["frames_sent"], 4) == 0, (rank, inner)
        assert max(inner["wire_tx"], inner["wire_rx"]) < BARRIERS, (rank, inner)


def wire(nbytes: int) -> int:
    """The most that may be seen on a link for so many bytes of payload."""
    return round(nbytes * OVERHEAD) + BARRIERS


def test_2dh_sends_6_messages_for_15(make_lab: MakeLab, tmp_path: Path) -> None:
    """16 ranks on 4 hosts: the same bytes cross, in 3 messages instead of 12."""
    each = 256 * 4
    found = run(make_lab(4, rate="2gbit"), tmp_path, "four_by_four", 16)
    for rank, moved in enumerate(found):
        sent = {}
        for name, messages in (("pairwise", 15), ("2dh", 6)):
            # The first words of a call to a peer are a frame of their own.
            peers = sum(frames > 0 for frames in moved[name]["frames_sent"])
            assert peers == messages, (rank, name, moved[name])
            assert sum(moved[name]["frames_sent"]) - peers == messages, (rank, name, moved[name])
            sent[name] = data(moved[name], words(Kind.ALL_TO_ALL, (256,) * 16, None, name))
        assert across(rank, sent["pairwise"], 4) == across(rank, sent["2dh"], 4) == 12 * each, rank
        assert sum(sent["pairwise"]) == 15 * each
        assert sum(sent["2dh"]) == 24 * each


def test_the_wire_agrees_with_our_counters(make_lab: MakeLab, tmp_path: Path) -> None:
    """Ring of 4 hosts: 2(n-1)/n of the vector leaves each host, and next to nothing else."""
    count, nbytes = 1 << 21, 8 << 20
    found = run(make_lab(4, rate="2gbit"), tmp_path, "four_hosts", 4)
    described = words(Kind.ALL_REDUCE, (count,), Op.SUM, "ring")
    for rank, moved in enumerate(found):
        ring, ideal = moved["ring"], nbytes * 3 // 2
        assert data(ring, described) == [ideal if peer == (rank + 1) % 4 else 0 for peer in range(4)], (rank, ring)
        headers = (ideal // SEGMENT + 32) * HEADER
        assert ideal <= sum(ring["bytes_sent"]) <= ideal + headers, (rank, ring)
        for way in ("wire_tx", "wire_rx"):
            assert ideal <= ring[way] <= wire(ideal), (rank, ring)
