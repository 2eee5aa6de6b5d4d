"""Which way rows go: by closed forms, without swinging between two, and never through servers where that is slower."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from byteps_like.control.placing.optimum import Machine, card_time, shares
from byteps_like.control.types import Member, MemberRole, View
from byteps_like.torch.sparse.choice import RETURN, Seen, SparseMethod, choose, codec_for, detour, payload, times
from byteps_like.torch.sparse.rows import Rows
from byteps_like.worker.cards import ASSUMED, Cards, NicLoad, alike

MBIT = 1e6 / 8


def rows_of(places: int, width: int, dtype: torch.dtype = torch.float32) -> Rows:
    return Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, width, dtype=dtype), torch.Size([places, width]), 1)


def with_servers(ranks: int, servers: int, rate: float = 400 * MBIT) -> Cards:
    return Cards((NicLoad(True, rate),) * ranks + (NicLoad(False, rate, 1 / servers),) * servers)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Rows, int, Seen]:
    """A tensor, ranks, and what a round of it may have shown: every rank has at most the union, the union at most all
    of the ranks' entries."""
    places, width, ranks = draw(st.integers(1, 10**6)), draw(st.integers(1, 512)), draw(st.integers(2, 16))
    union = draw(st.integers(0, places))
    entries = draw(st.integers(union, union * ranks))
    return rows_of(places, width), ranks, Seen(entries, union, draw(st.sampled_from(list(SparseMethod))))


@given(rounds())
def test_among_workers_the_fewest_bytes_decide(found: tuple[Rows, int, Seen]) -> None:
    rows, n, seen = found
    assert set(times(rows, n, seen)) == {SparseMethod.GATHERED, SparseMethod.TWO_HOPS, SparseMethod.DENSE}
    own, item = seen.entries / n, 4 * rows.width + 4
    gathered, hops = (n - 1) * own * item, (n - 1) / n * (own + seen.union) * item
    dense = 2 * (n - 1) / n * rows.places * rows.width * 4 * (RETURN if seen.way is SparseMethod.DENSE else 1)
    least = {SparseMethod.GATHERED: gathered, SparseMethod.TWO_HOPS: hops, SparseMethod.DENSE: dense}
    assert least[choose(rows, n, seen)] == pytest.approx(min(least.values()))


@given(rounds())
def test_as_many_servers_as_ranks_take_what_the_busiest_direction_takes(found: tuple[Rows, int, Seen]) -> None:
    rows, n, seen = found
    rate = 400 * MBIT
    own, codec = seen.entries / n, codec_for(rows, seen)
    believed = times(rows, n, seen, with_servers(n, n, rate))
    assert believed[SparseMethod.DENSE] == pytest.approx(rows.places * rows.width * 4 / rate)
    if SparseMethod.SERVERS in believed:
        down = payload(rows, seen.union, codec) / rate
        assert payload(rows, own, codec) <= payload(rows, seen.union, codec)
        assert believed[SparseMethod.SERVERS] == pytest.approx(down + detour(rows))
        assert believed[SparseMethod.SERVERS] < believed[SparseMethod.DENSE] + detour(rows)


@given(rounds(), st.integers(1, 16), st.floats(1e6, 1e11))
def test_a_way_once_taken_is_kept_while_nothing_changes(
    found: tuple[Rows, int, Seen], servers: int, rate: float
) -> None:
    rows, n, seen = found
    cards = with_servers(n, servers, rate)
    first = choose(rows, n, seen, cards)
    assert choose(rows, n, Seen(seen.entries, seen.union, first), cards) is first


@given(rounds(), st.integers(1, 16))
def test_on_a_fast_network_no_dense_copy_is_looked_through(found: tuple[Rows, int, Seen], servers: int) -> None:
    """Where the detour takes longer than it could save."""
    rows, n, seen = found
    assume(seen.way is not SparseMethod.SERVERS)
    cards = with_servers(n, servers, 1e15)
    assume(seen.union * 10 < rows.places)
    assert choose(rows, n, seen, cards) is not SparseMethod.SERVERS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.complex64])
def test_only_float32_goes_to_servers(dtype: torch.dtype) -> None:
    seen, cards = Seen(4000, 1000, SparseMethod.TWO_HOPS), with_servers(4, 4)
    assert choose(rows_of(10_000, 64), 4, seen, cards) is SparseMethod.SERVERS
    assert choose(rows_of(10_000, 64, dtype), 4, seen, cards) is SparseMethod.TWO_HOPS


def test_the_way_follows_the_touched_share() -> None:
    """Up and down again: with hysteresis, so it comes back later than it went. A very few rows are found sooner than
    they would be in a dense copy."""
    rows, cards, way, ways = rows_of(10_000, 64), with_servers(4, 4), SparseMethod.TWO_HOPS, []
    shares_seen = [0.001, 0.1, 0.3, 0.79, 0.81, 0.78, 0.7, 0.6, 0.1, 0.001]
    for share in shares_seen:
        count = round(share * rows.places)
        way = choose(rows, 4, Seen(4 * count, count, way), cards)
        ways.append(way)
    few, servers, dense = SparseMethod.TWO_HOPS, SparseMethod.SERVERS, SparseMethod.DENSE
    assert ways == [few, servers, servers, servers, dense, dense, dense, servers, servers, few]


def test_single_elements_go_by_their_indices_while_these_are_few() -> None:
    rows = rows_of(1 << 20, 1)
    assert [codec_for(rows, Seen(4 * union, union, SparseMethod.TWO_HOPS)).name for union in (100, 1 << 16)] == [
        "coo", "blocksparse",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=6), st.booleans())
def test_cards_are_those_of_the_optimum(hosts: list[tuple[int, int]], known: bool) -> None:
    """With one rank to a host, dense sums take by servers what BytePS's optimum says, and by ranks an all-reduce's."""
    from byteps_like.worker.engine.native import cards_of

    assume(any(workers for workers, _ in hosts))
    gbps = 5.0 if known else 0.0

    def members(role: MemberRole, counts: list[int]) -> tuple[Member, ...]:
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        return tuple(Member(role, rank, str(place), "h", 1, shards=1, gbps=gbps) for rank, place in enumerate(places))

    workers, servers = [count for count, _ in hosts], [count for _, count in hosts]
    cards = cards_of(View("j", 1, members(MemberRole.WORKER, workers), members(MemberRole.SERVER, servers)))
    assert cards.ranks == sum(workers) and cards.has_servers == (sum(servers) > 0)
    rate = 5e9 / 8 if known else ASSUMED
    if cards.has_servers and set(workers) <= {0, 1}:
        modelled = [Machine(count, serves > 0, rate) for count, serves in hosts if count or serves]
        assert cards.by_servers(1.0, 1.0) == pytest.approx(card_time(modelled, shares(modelled)))
    assert sum(card.share for card in cards.all) == pytest.approx(float(cards.has_servers))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_cards_that_are_alike(n: int) -> None:
    cards = alike(n)
    assert cards.by_ranks(1.0, 1.0) * ASSUMED == pytest.approx(2 * (n - 1) / n)
    assert cards.by_ranks(1.0, 3.0) * ASSUMED == pytest.approx((n - 1) / n * 4)
    assert cards.gathered(1.0) * ASSUMED == pytest.approx(n - 1)
