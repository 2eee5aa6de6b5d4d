"""Encoded sends of a pipeline, between stages that stand in for torch's: values, feedback, bytes, what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import byteps_like.torch as bps
from byteps_like.compression.codec import Draw, Floats
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.torch.pipeline.edges import Edges, check_alike, codecs_by_edge, epilogue
from byteps_like.torch.pipeline.stage import encode_sends

CHUNKS, SHAPE = 4, (3, 700)


@dataclass
class Op:
    """As torch's P2POp, as far as it counts here."""

    tensor: Tensor
    group_peer: int


class Stage:
    """The methods of torch's stages that its schedules call. Stage s is on rank s."""

    def __init__(self, index: int, tensors: list[Tensor]) -> None:
        self.stage_index, self.stage_index_to_group_rank = index, {0: 0, 1: 1, 2: 2}
        self.tensors = tensors  # what it sends, or where it receives to, by micro-batch
        self.computed: list[Tensor] = []

    def clear_runtime_states(self) -> None:
        pass

    def get_fwd_send_ops(self, chunk: int) -> list[Op]:
        return [Op(self.tensors[chunk], self.stage_index + 1)]

    def get_bwd_recv_ops(self, chunk: int) -> list[Op]:
        return [Op(self.tensors[chunk], self.stage_index + 1)]

    def get_fwd_recv_ops(self, chunk: int) -> list[Op]:
        return [Op(self.tensors[chunk], self.stage_index - 1)]

    def get_bwd_send_ops(self, chunk: int) -> list[Op]:
        return [Op(self.tensors[chunk], self.stage_index - 1)]

    def forward_one_chunk(self, chunk: int, *_: Any) -> None:
        self.computed.append(self.tensors[chunk].detach().clone())

    backward_one_chunk = forward_one_chunk


def edges(gradients: Any = "int8", activations: Any = None, smallest: int = 0, **more: Any) -> Edges:
    chosen = [codecs_by_edge(one, "gradients", 3) for one in (gradients, activations)]
    return Edges(*chosen, **{"late": None, "feedback": None, "smallest": smallest} | more)


def gradients(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SHAPE, generator=generator).to(dtype) for _ in range(CHUNKS)]


def pair(sent: list[Tensor], way: int, rules: Edges, others: Edges | None = None) -> tuple[Any, Any]:
    """The stages of edge (1, 2): who sends `sent`, forward or backward, and who receives."""
    source, sink = Stage(1 if way > 0 else 2, sent), Stage(2 if way > 0 else 1, [torch.empty_like(x) for x in sent])
    encode_sends(source, rules)
    encode_sends(sink, others or rules)
    return source, sink


def step(source: Any, sink: Any, way: int) -> list[int]:
    """All micro-batches from one to the other, all received before any is computed; the bytes of each."""
    source.clear_runtime_states()
    sink.clear_runtime_states()
    lengths = []
    for chunk in range(CHUNKS):
        (send,) = (source.get_fwd_send_ops if way > 0 else source.get_bwd_send_ops)(chunk)
        (receive,) = (sink.get_fwd_recv_ops if way > 0 else sink.get_bwd_recv_ops)(chunk)
        assert send.tensor.dtype is receive.tensor.dtype and send.tensor.nbytes == receive.tensor.nbytes
        receive.tensor.detach().copy_(send.tensor)
        lengths.append(send.tensor.nbytes)
    for chunk in range(CHUNKS):
        (sink.forward_one_chunk if way > 0 else sink.backward_one_chunk)(chunk, ())
    return lengths


def said(text: str, x: Floats) -> Floats:
    codec, draw, nothing = codec_of(text), Draw(), np.zeros(0, np.float32)
    return codec.decode(codec.encode(x, draw, nothing, 1), 1, draw, nothing, x.size, 1)


def slot(text: str) -> int:
    return 8 + -(-codec_of(text).plan(2100, 1).payload // 8) * 8


@pytest.mark.parametrize("way", [1, -1], ids=["activations", "gradients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_receiver_computes_with_what_payloads_say(way: int, dtype: torch.dtype) -> None:
    sent = gradients(dtype)
    source, sink = pair(sent, way, edges("int8", "int8"))
    assert step(source, sink, way) == [slot("int8")] * CHUNKS
    for x, computed in zip(sent, sink.computed, strict=True):
        wanted = torch.from_numpy(said("int8", x.float().flatten().numpy())).view(SHAPE).to(dtype)
        assert computed.dtype is dtype and torch.equal(computed, wanted)


@pytest.mark.parametrize("text", ["onebit", "topk:ratio=0.1", "int8"])
def test_what_is_left_of_a_micro_batch_goes_with_the_next_one(text: str) -> None:
    """Sums telescope: all that has come, and what is left of the last, is all that was sent; a step begins anew."""
    sent = gradients()
    source, sink = pair(sent, -1, edges(text, feedback=True))
    for _ in range(2):
        sink.computed.clear()
        step(source, sink, -1)
        left = np.zeros(2100, np.float32)
        for x, computed in zip(sent, sink.computed, strict=True):
            whole = left + x.flatten().numpy()
            wanted = said(text, whole)
            np.testing.assert_array_equal(computed.flatten().numpy(), wanted)
            left = whole - wanted
        came, asked = (torch.stack(some).sum(0).flatten().numpy() for some in (sink.computed, sent))
        np.testing.assert_allclose(came + left, asked, atol=1e-5)
        assert np.abs(came - asked).max() > 0


def low_rank(rank: int, rows: int = 64, columns: int = 80) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(rows, rank, generator=generator) @ torch.randn(rank, columns, generator=generator)


def test_powersgd_sends_two_factors() -> None:
    """Which is all there is of matrices of that rank; of others the error of a sum falls by feedback."""
    exact = [low_rank(2).view(8, 8, 80) * (chunk + 1) for chunk in range(CHUNKS)]
    source, sink = pair(exact, -1, edges("powersgd:rank=2"))
    assert step(source, sink, -1) == [8 + 4 * 2 * (64 + 80)] * CHUNKS
    for x, computed in zip(exact, sink.computed, strict=True):
        torch.testing.assert_close(computed, x, rtol=1e-3, atol=1e-3)
    source.tensors = sink.tensors = [low_rank(2, columns=96)] * CHUNKS  # as of a model whose last dimension varies
    assert step(source, sink, -1) == [8 + 4 * 2 * (64 + 96)] * CHUNKS
    errors = []
    for feedback in (False, None):
        source, sink = pair([low_rank(16)] * CHUNKS, -1, edges("powersgd:rank=8", feedback=feedback))
        step(source, sink, -1)
        errors.append((torch.stack(sink.computed).mean(0) - low_rank(16)).norm())
    assert errors[1] < 0.7 * errors[0]


def test_powersgd_leaves_what_it_would_not_halve_and_shows_what_is_infinite() -> None:
    source, sink = pair(gradients(), -1, edges("powersgd:rank=2"))
    assert step(source, sink, -1) == [8400] * CHUNKS
    bad = [low_rank(2), *[low_rank(2)] * 3]
    bad[0] = bad[0].clone().index_fill_(0, torch.tensor([5]), float("inf"))
    source, sink = pair(bad, -1, edges("powersgd:rank=2"))
    step(source, sink, -1)
    assert not sink.computed[0].isfinite().all() and all(x.isfinite().all() for x in sink.computed[1:])
    _, sink = pair(bad, -1, edges("powersgd:rank=2"), edges("powersgd:rank=2"))
    (receive,) = sink.get_bwd_recv_ops(0)
    receive.tensor.fill_(1)
    with pytest.raises(MismatchError, match="another codec than powersgd"):
        sink.backward_one_chunk(0)


def test_feedback_is_for_biased_codecs_and_not_for_activations() -> None:
    sent = gradients()
    for text, way in (("int8", -1), ("onebit", 1)):
        source, sink = pair(sent, way, edges(text, text))
        step(source, sink, way)
        np.testing.assert_array_equal(sink.computed[1].flatten(), said(text, sent[1].flatten().numpy()))


def test_nothing_is_left_where_a_gradient_was_infinite() -> None:
    sent = gradients()
    sent[0][0, 0] = float("inf")
    source, sink = pair(sent, -1, edges("onebit"))
    step(source, sink, -1)
    assert not sink.computed[0].isfinite().all() and all(x.isfinite().all() for x in sink.computed[1:])


def test_gradients_are_encoded_in_the_epilogue_alone() -> None:
    sent = gradients()
    source, sink = pair(sent, -1, edges("onebit", late=frozenset({(2, 2), (2, 3), (1, 0)})))
    assert step(source, sink, -1) == [8400, 8400, slot("onebit"), slot("onebit")]
    assert torch.equal(sink.computed[1], sent[1]) and not torch.equal(sink.computed[2], sent[2])


@pytest.mark.parametrize(
    ("tensor", "smallest"),
    [(torch.ones(SHAPE, dtype=torch.int32), 0), (torch.ones(SHAPE).double(), 0), (torch.ones(SHAPE), 8401)],
    ids=["integers", "double", "small"],
)
def test_other_tensors_go_as_they_are(tensor: Tensor, smallest: int) -> None:
    source, sink = pair([tensor] * CHUNKS, 1, edges("int8", "int8", smallest))
    assert step(source, sink, 1) == [tensor.nbytes] * CHUNKS
    assert torch.equal(sink.computed[0], tensor)


def test_what_skips_a_stage_goes_as_it_is() -> None:
    source, _ = pair(gradients(), 1, edges("int8", "int8"))
    source.stage_index_to_group_rank[2] = 7
    assert source.get_fwd_send_ops(0)[0].tensor is source.tensors[0]


def test_codecs_by_edge() -> None:
    rules = edges({(0, 1): "int4", "*": None}, {(1, 2): "int8"})
    assert rules.gradients == (codec_of("int4"), None) and rules.activations == (None, codec_of("int8"))
    for choice in ({(1, 0): "int8"}, {(2, 3): "int8"}, {"all": "int8"}):
        with pytest.raises(InvalidArgumentError, match=r"no edge.*\(0, 1\), \(1, 2\)"):
            edges(choice)


@pytest.mark.parametrize("text", ["thc4", "fixed32", "randomk", "sign", "bitmap", "sketch", "chunktopk", "blocksparse"])
def test_codecs_whose_payloads_need_others_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"gradients='.*(made to be summed|as long as the tensor)"):
        edges(text)


@pytest.mark.parametrize("choice", ["rows", "none", bps.Compress("onebit", feedback=True), 8], ids=str)
def test_other_choices_are_refused(choice: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        edges(choice)


def test_casts_are_codecs_here() -> None:
    assert edges("bf16").gradients == edges(bps.Compression.bf16).gradients == (codec_of("bf16"),) * 2


def test_the_ends_of_an_edge_must_agree() -> None:
    mine, ranks = edges("int8").described(), {0: 0, 1: 1, 2: 2}
    check_alike([mine] * 3, ranks)
    others = {
        r"stages 1 and 2 rank 1 .* gradients=int:bits=8.*rank 2 has gradients=int:bits=4": edges({(1, 2): "int4"}),
        r"stages 1 and 2 rank 1 .* activations=none, rank 2 .*activations=onebit": edges("int8", "onebit"),
        r"encoded micro-batches=all, rank 2 has encoded micro-batches=\[3\]": edges(late=frozenset({(1, 3), (2, 3)})),
        r"smallest=0, rank 2 has smallest=5": edges(smallest=5),
    }
    for text, other in others.items():
        with pytest.raises(MismatchError, match=text):
            check_alike([mine, mine, other.described()], ranks)
    with pytest.raises(MismatchError, match="stages 0 and 1 rank 2 "):
        check_alike([mine, mine, edges("int4").described()], {0: 2, 1: 1, 2: 0})


def test_a_payload_of_another_codec_is_told() -> None:
    source, sink = pair(gradients(), -1, edges("int8"), edges("int:rounding=stochastic"))
    with pytest.raises(MismatchError, match=r"another codec than int:.*compress_pipeline"):
        step(source, sink, -1)


def scheduled(name: str, stages: int, ranks: int, chunks: int) -> Any:
    from torch.distributed.pipelining import schedules

    kind = getattr(schedules, name)
    first = SimpleNamespace(
        num_stages=stages, group_size=ranks, group_rank=0, stage_index=0, submod=torch.nn.Identity()
    )
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    return kind([first] + [SimpleNamespace(**vars(first))] * (stages // ranks - 1) if several else first, chunks)


def test_the_epilogue_of_torch_s_schedules() -> None:
    assert epilogue(scheduled("ScheduleGPipe", 3, 3, 4)) == {(s, m) for s in range(3) for m in range(4)}
    # Of 1F1B the last stage has one gradient to send after its last forward, the one before it two, and so on.
    assert epilogue(scheduled("Schedule1F1B", 3, 3, 5)) == {(s, m) for s in range(3) for m in range(2 + s, 5)}
    found = epilogue(scheduled("ScheduleInterleaved1F1B", 4, 2, 4))
    assert (3, 3) in found and (1, 3) in found and (3, 0) not in found
    assert epilogue(scheduled("ScheduleDualPipeV", 4, 2, 4))
    with pytest.raises(InvalidArgumentError, match="epilogue_only=False"):
        epilogue(SimpleNamespace(pipeline_order=None))


def test_only_schedules_are_taken() -> None:
    with pytest.raises(InvalidArgumentError, match="schedule of torch"):
        bps.compress_pipeline(torch.nn.Linear(1, 1))
