"""Encoded all-gather and reduce-scatter of FSDP2 over hosts of threads: values, errors and bytes between hosts."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from byteps_like.collectives.algorithms.two_level import carrier
from byteps_like.collectives.planning.shape import CallShape
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.compression.codec import Codec, Draw, Floats, Trait
from byteps_like.compression.registry import CODECS, codec_of
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError
from byteps_like.torch.compression.slot_codec import HEADER, SlotCodec, gradients_codec, lone_codec
from byteps_like.torch.fsdp.collectives import CodedAllGather, TwoHopReduceScatter
from byteps_like.torch.fsdp.hosts import even_hosts
from byteps_like.torch.fsdp.secondary import Secondary
from tests.fakes.native_groups import run_native_groups, sent_across

KEY = 11
GRID = (0, 0, 0, 0, 1, 1, 1, 1)
LAYOUTS = {
    "2x4": GRID,
    "3x2": (0, 0, 1, 1, 2, 2),
    "uneven": (0, 0, 1, 1, 1, 2),
    "interleaved": (0, 1, 0, 1),
    "one rank per host": (0, 1, 2),
}
COUNTS = (1, 37, 8191)
each_layout = pytest.mark.parametrize("hosts", LAYOUTS.values(), ids=LAYOUTS.keys())


def gatherer(codec: str = "int8", smallest: int = 0) -> CodedAllGather:
    return CodedAllGather(SlotCodec(lone_codec(codec, "weights"), KEY), smallest, Secondary("model", False))


def scatterer(codec: str = "int4", within: Any = None) -> TwoHopReduceScatter:
    return TwoHopReduceScatter(SlotCodec(gradients_codec(codec), KEY), 0, Secondary("model", False), within)


def slot(codec: Codec, numel: int) -> int:
    return HEADER + -(-codec.plan(numel, 1).payload // 8) * 8


def said(codec: Codec, x: Floats, draw: Draw) -> Floats:
    nothing = np.zeros(0, np.float32)
    return codec.decode(codec.encode(x, draw, nothing, 1), 1, draw, nothing, x.size, 1)


def whole_numbers(rank: int, numel: int) -> Tensor:
    """Whose sums are exact in any order, in bfloat16 too."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-15, 16, (numel,), generator=generator).float()


def gathered(group: Any, rank: int, count: int, dtype: torch.dtype) -> tuple[Tensor, int]:
    shard, out = whole_numbers(rank, count).to(dtype) / 16, torch.empty(group.size() * count, dtype=dtype)
    gatherer()(out, shard, group)
    return out, sent_across(group)


@each_layout
@pytest.mark.parametrize("count", COUNTS)
def test_all_ranks_gather_what_the_payloads_say(hosts: tuple[int, ...], count: int) -> None:
    codec, layout, n = codec_of("int8"), Layout(hosts), len(hosts)
    results = run_native_groups(hosts, gathered, count, torch.float32)
    shards = [whole_numbers(rank, count).numpy() / np.float32(16) for rank in range(n)]
    wanted = np.concatenate([said(codec, x, Draw(KEY, 0, rank)) for rank, x in enumerate(shards)])
    for out, _ in results:
        np.testing.assert_array_equal(out.numpy(), wanted)
    if n > len(layout.members):  # else by recursive doubling, as all small gathers of one rank per host
        size = slot(codec, count)
        described = len(CallShape(Kind.ALL_GATHER, n, (size,) * n, DType.UINT8).describe("two_level"))
        assert sum(sent for _, sent in results) == n * (len(layout.members) - 1) * (size + described)


def test_bfloat16_weights_are_those_of_float32_rounded() -> None:
    wide, narrow = (
        run_native_groups(LAYOUTS["3x2"], gathered, 100, dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    for (out, sent), (rounded, as_much) in zip(wide, narrow, strict=True):
        assert torch.equal(out.bfloat16(), rounded) and sent == as_much


def with_codec(group: Any, rank: int, text: str) -> Tensor:
    out = torch.empty(group.size() * 1000)
    gatherer(text)(out, whole_numbers(rank, 1000), group)
    return out


@pytest.mark.parametrize(
    "kind", [kind for kind in CODECS if kind().trait in (Trait.OPAQUE, Trait.REENCODE)], ids=lambda kind: kind.name
)
def test_any_codec_may_carry_weights(kind: type[Codec]) -> None:
    codec = kind()
    shards = [whole_numbers(rank, 1000).numpy() for rank in range(3)]
    wanted = np.concatenate([said(codec, x, Draw(KEY, 0, rank)) for rank, x in enumerate(shards)])
    for out in run_native_groups((0, 0, 1), with_codec, codec.spec()):
        np.testing.assert_array_equal(out.numpy(), wanted)


def reduced(group: Any, rank: int, count: int, dtype: torch.dtype, within: Any = None) -> tuple[Tensor, int]:
    """The second of two rounds."""
    inner = SlotCodec(gradients_codec(within), KEY ^ 1 << 60) if isinstance(within, str) else within
    scatter, out = scatterer(within=inner), torch.empty(count, dtype=dtype)
    for _ in range(2):
        before = sent_across(group)
        scatter(out, whole_numbers(rank, group.size() * count).to(dtype), group, dist.ReduceOp.AVG)
    return out, sent_across(group) - before


def by_hand(hosts: tuple[int, ...], count: int) -> list[Floats]:
    """Averages by chunk: the sum of the chunk's own host, and what the codec says of the others'."""
    codec, layout, n = codec_of("int4"), Layout(hosts), len(hosts)
    xs = [whole_numbers(rank, n * count).numpy().reshape(n, count) for rank in range(n)]
    found = []
    for rank in range(n):
        sums = [np.sum([xs[member][rank] for member in members], axis=0) for members in layout.members]
        senders = {carrier(layout, host, rank): host for host in range(len(sums))}
        total = sums[layout.place(rank)[0]]
        for sender in sorted(senders):
            if senders[sender] != layout.place(rank)[0]:
                total = total + said(codec, sums[senders[sender]], Draw(KEY + 1 + rank, 1, sender))
        found.append(total / np.float32(n))
    return found


@each_layout
@pytest.mark.parametrize("count", COUNTS)
def test_hosts_sum_first_and_send_their_sums_encoded(hosts: tuple[int, ...], count: int) -> None:
    layout, n, size = Layout(hosts), len(hosts), slot(codec_of("int4"), count)
    for dtype in (torch.float32, torch.bfloat16):
        results = run_native_groups(hosts, reduced, count, dtype)
        for (out, _), wanted in zip(results, by_hand(hosts, count), strict=True):
            tolerance = 1e-6 if dtype == torch.float32 else 2**-8
            np.testing.assert_allclose(out.float().numpy(), wanted, rtol=tolerance, atol=1e-5)
        even = len({len(ranks) for ranks in layout.members}) == 1
        pairs = sum(hosts[a] != hosts[b] for a in range(n) for b in range(n))  # uneven: some messages are empty
        messages = n * (len(layout.members) - 1) if even else pairs
        described = len("all_to_all uint8[uneven], pairwise")
        assert sum(sent for _, sent in results) == n * (len(layout.members) - 1) * size + messages * described


def raw(group: Any, rank: int, count: int, dtype: torch.dtype) -> tuple[int, int]:
    full, out = torch.ones(group.size() * count, dtype=dtype), torch.empty(count, dtype=dtype)
    group.reduce_scatter_single(out, full).wait()
    first = sent_across(group)
    group.all_gather_single(full, out).wait()
    return first, sent_across(group) - first


def within_host(group: Any, rank: int, count: int, dtype: torch.dtype) -> int:
    """Backward's all-gather when the second shard lies within the host: of the whole, in 4 parts."""
    near = group.splitGroup(list(range(rank // 4 * 4, rank // 4 * 4 + 4)))
    before = sent_across(group)
    gatherer()(torch.empty(8 * count, dtype=dtype), torch.ones(2 * count, dtype=dtype), near)
    return sent_across(group) - before


@pytest.mark.parametrize("count", [8191, 65536])
def test_a_step_of_zero_3_sends_at_most_four_fifths_of_the_model_across_hosts(count: int) -> None:
    """2 hosts x 4 ranks, M the bytes of the weights in bfloat16: 3 M as they are."""
    dtype, model = torch.bfloat16, 2 * 8 * count
    plain = run_native_groups(GRID, raw, count, dtype)
    scattered, gathers = (sum(one[kind] for one in plain) for kind in (0, 1))
    assert scattered + 2 * gathers == pytest.approx(3 * model, rel=0.01)
    forward = sum(sent for _, sent in run_native_groups(GRID, gathered, count, dtype))
    backward = sum(run_native_groups(GRID, within_host, count, dtype))
    gradients = sum(sent for _, sent in run_native_groups(GRID, reduced, count, dtype))
    assert backward == 0
    assert forward + gradients <= 0.80 * model
    assert scattered >= 3.5 * gradients


def ring(codec: Codec, xs: list[Floats]) -> Floats:
    """One chunk's sum as a ring makes it: encoded again by each rank that it passes."""
    total = xs[0]
    for rank, x in enumerate(xs[1:]):
        total = said(codec, total, Draw(3, 0, rank)) + x
    return total


@pytest.mark.parametrize("within", [None, "int4"], ids=["raw within", "int4 within"])
def test_error_is_lower_than_that_of_a_ring(within: str | None) -> None:
    """At 8 ranks, of 65536 elements."""
    count, n = 8192, 8
    results = run_native_groups(GRID, reduced, count, torch.float32, within)
    xs = [whole_numbers(rank, n * count).numpy().reshape(n, count) for rank in range(n)]
    exact = np.sum(xs, axis=0)
    ours = np.stack([n * out.numpy() for out, _ in results]) - exact
    rings = np.stack([ring(codec_of("int4"), [x[chunk] for x in xs]) for chunk in range(n)]) - exact
    assert np.linalg.norm(rings) >= 1.4 * np.linalg.norm(ours)
    # Unbiased: of so many elements the mean error is within four standard errors.
    assert abs(ours.mean()) <= 4 * ours.std() / np.sqrt(ours.size)


def test_the_first_hop_may_be_cast_to_bfloat16() -> None:
    plain, cast = (run_native_groups(GRID, reduced, 37, torch.float32, within) for within in (None, torch.bfloat16))
    for (out, _), (other, _) in zip(plain, cast, strict=True):
        torch.testing.assert_close(other, out, rtol=1e-6, atol=1e-5)  # whole numbers: no rounding


def as_they_are(group: Any, rank: int, dtype: torch.dtype, smallest: int, op: Any) -> None:
    n = group.size()
    shard = torch.full((50,), 1 / 3 + rank, dtype=torch.float64).to(dtype)
    out, result = torch.empty(50 * n, dtype=dtype), torch.empty(50, dtype=dtype)
    gatherer(smallest=smallest)(out, shard, group)
    assert torch.equal(out.view(n, 50)[:, 0], (1 / 3 + torch.arange(n, dtype=torch.float64)).to(dtype))
    scatter = TwoHopReduceScatter(SlotCodec(codec_of("int4"), 0), smallest, Secondary("model", False), None)
    scatter(result, out, group, op)
    group.reduce_scatter_single(expected := torch.empty_like(result), out, op).wait()
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("hosts", "dtype", "smallest", "op"),
    [
        ((0, 0), torch.float32, 0, dist.ReduceOp.SUM),
        ((0, 1), torch.float64, 0, dist.ReduceOp.AVG),
        ((0, 1), torch.float32, 401, dist.ReduceOp.SUM),
        ((0, 1), torch.float32, 401, dist.ReduceOp.MAX),
    ],
    ids=["one host", "float64", "small", "maximum"],
)
def test_what_is_not_encoded_is_exact(hosts: tuple[int, ...], dtype: torch.dtype, smallest: int, op: Any) -> None:
    run_native_groups(hosts, as_they_are, dtype, smallest, op)


def asynchronous(group: Any, rank: int) -> None:
    shard, out, other = whole_numbers(rank, 64), torch.empty(64 * 4), torch.empty(64 * 4)
    work = gatherer()(out, shard, group, async_op=True)
    assert work is not None and work.wait()
    gatherer()(other, shard, group)
    assert torch.equal(out, other)


def test_an_asynchronous_gather_is_decoded_when_it_is_waited_for() -> None:
    run_native_groups((0, 0, 1, 1), asynchronous)


def with_different_codecs(group: Any, rank: int) -> None:
    codec = "int:rounding=stochastic" if rank else "int8"
    with pytest.raises(MismatchError, match=r"another codec than int:.*compress_fsdp"):
        gatherer(codec)(torch.empty(200), torch.ones(100), group)


def test_ranks_with_different_codecs_are_told() -> None:
    run_native_groups((0, 1), with_different_codecs)


def test_a_slot_that_can_t_be_right_is_refused() -> None:
    codec = SlotCodec(codec_of("int8"), 0)
    memory = np.zeros(codec.slot(10), np.uint8)
    codec.encode(np.ones(10, np.float32), memory, (0, 0, 0))
    memory[4:8].view(np.uint32)[:] = 1000
    with pytest.raises(CorruptError, match="1000 bytes"):
        codec.decode(memory, np.empty(10, np.float32))


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1), (0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 0, 0, 1, 1, 1)])
def test_hpz_is_for_equal_hosts_in_order(hosts: tuple[int, ...]) -> None:
    wanted = {(0, 0, 1, 1): 2, (0, 0, 0, 1, 1, 1): 3}.get(hosts)
    assert run_native_groups(hosts, lambda group, rank: even_hosts(group)) == [wanted] * len(hosts)


def step(group: Any, rank: int, second: int) -> str:
    """A forward, backward's gather (over the host or everybody), the reduction of gradients."""
    seen, near = Secondary("blocks.0", True), group.splitGroup([rank // 2 * 2, rank // 2 * 2 + 1])
    for _ in range(2):  # evaluation gathers across hosts as well
        seen.forward()
        seen.gathers(group)
    seen.gathers(near if second == 2 else group)
    try:
        seen.reduces(group)
    except InvalidArgumentError as error:
        return str(error)
    return ""


def test_a_backward_across_hosts_is_told_when_it_should_not_be() -> None:
    assert run_native_groups((0, 0, 1, 1), step, 2) == [""] * 4
    for text in run_native_groups((0, 0, 1, 1), step, 4):
        assert "blocks.0" in text and "reshard_after_forward=2" in text


def test_codecs_that_can_t_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="made to be summed"):
        lone_codec("int:scale=shared", "weights")
    with pytest.raises(InvalidArgumentError, match="second hop"):
        gradients_codec("int:scale=shared")


def test_what_lies_elsewhere_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By FSDP's collectives and a pipeline's stages alike: it travels as it is."""
    from byteps_like.torch.fsdp import collectives as fsdp_collectives
    from byteps_like.torch.fsdp import hosts as fsdp_hosts
    from byteps_like.torch.pipeline import stage as pipeline_stage
    from byteps_like.torch.pipeline.edges import Direction

    monkeypatch.setattr(fsdp_collectives, "crosses_hosts", lambda _: True)
    fsdp_hosts.warn_raw.cache_clear()
    codec: Any = object()
    seam = fsdp_collectives._Seam(codec, 0, codec)
    edges = types.SimpleNamespace(smallest=0, codec=lambda *_: "int8")
    stage: Any = types.SimpleNamespace(_own=0, _edges=edges, _rank_of={1: 1})
    tensor = torch.empty(1000, device="meta")
    operation = types.SimpleNamespace(tensor=tensor, group_peer=1)
    for _ in range(2):
        assert seam._codec_for(tensor, codec) is None
        assert pipeline_stage.Sends._coder(stage, Direction.ACTIVATIONS, 1, 0, operation) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{call}: tensors on meta are sent uncompressed: only tensors in host memory are encoded"
        for call in ("compress_fsdp", "compress_pipeline")
    ]
