"""Compressed sends of a pipeline: what the stages of `torch.distributed.pipelining` send each other, encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from byteps_like.errors import InvalidArgumentError

if TYPE_CHECKING:
    from byteps_like.torch.pipeline.edges import Choice

SMALLEST = 64 << 10


def compress_pipeline(
    schedule: Any,
    gradients: Choice = "int8",
    activations: Choice = None,
    *,
    epilogue_only: bool = True,
    feedback: bool | None = None,
    smallest: int = SMALLEST,
) -> Any:
    """Compresses the tensors that the stages of a torch.distributed.pipelining schedule send each other.

        pipe = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss_of)
        bps.compress_pipeline(pipe, gradients="int8")

    Call it with the same arguments on every rank of the pipeline, before the first step or between two. Blocks for one
    all-gather, by which the ranks compare their arguments. Returns `schedule`, which is one of torch's (GPipe, 1F1B and
    interleaved 1F1B are tested) or another with a `pipeline_order`. Any backend works. The method is Optimus-CC (Song
    et al., "Optimus-CC: Efficient Large NLP Model Training with 3D Parallelism Aware Communication Compression", ASPLOS
    2023).

    gradients: codec for the gradients of activations, sent backward: one of trait OPAQUE or REENCODE, a cast, or the
        paper's "powersgd:rank=16", which sends a tensor as the two factors of a matrix (all dimensions but the last, by
        the last). None sends them uncompressed. A dictionary chooses by edge: {(0, 1): "int4", "*": None}, where (0, 1)
        is the edge between stages 0 and 1, and "*" is every other edge.
    activations: the same for activations, sent forward. They are compressed in every micro-batch.
    epilogue_only: compresses gradients only after a rank's last forward, where no other work hides the send; False
        compresses all of them.
    feedback: adds the encoding error of one micro-batch's gradient to the next one that is encoded on the same edge;
        reset at the end of each step. None turns it on for biased codecs, which include powersgd.
    smallest: in bytes. Smaller tensors are sent uncompressed.

    float32, bfloat16 and float16 on the CPU are compressed, in any shape. Other dtypes and devices are not (for
    devices, a warning says so), nor are tensors that skip a stage. The thread that runs the step encodes when it
    launches a send, and decodes just before it computes.

    Raises InvalidArgumentError for unsuitable codecs, unknown edges and other schedules; MismatchError, on every rank,
    if the arguments of the ranks differ.
    """
    # Need the native core.
    from byteps_like.torch.pipeline.edges import Edges, check_alike, codecs_by_edge, epilogue
    from byteps_like.torch.pipeline.stage import encode_sends

    stages = _stages(schedule)
    edges = Edges(
        gradients=codecs_by_edge(gradients, "gradients", stages[0].num_stages),
        activations=codecs_by_edge(activations, "activations", stages[0].num_stages),
        late=epilogue(schedule) if epilogue_only else None,
        feedback=feedback,
        smallest=smallest,
    )
    asked: list[Any] = [None] * stages[0].group_size
    dist.all_gather_object(asked, edges.described(), group=stages[0].group)
    check_alike(asked, stages[0].stage_index_to_group_rank)
    for stage in stages:
        encode_sends(stage, edges)
    return schedule


def _stages(schedule: Any) -> list[Any]:
    """This rank's. torch has no public name for them."""
    one = getattr(schedule, "_stage", None)
    found = getattr(schedule, "_stages", None) or ([] if one is None else [one])
    if not found:
        raise InvalidArgumentError(
            f"compress_pipeline needs a schedule of torch.distributed.pipelining, such as Schedule1F1B(stage, 8), not"
            f" {type(schedule).__name__}"
        )
    return list(found)
