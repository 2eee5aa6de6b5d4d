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
    """Makes the stages of a schedule of torch.distributed.pipelining encode what they send each other.

        pipe = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss_of)
        bps.compress_pipeline(pipe, gradients="int8")

    Call it on every rank of the pipeline alike, before the first step or between two: ranks compare what they were
    given, by an all-gather. Returns `schedule`: one of torch's (GPipe, 1F1B and interleaved 1F1B are tested), or
    another with a `pipeline_order`.

    gradients: the codec in which the gradients of activations go back, one whose payload says by itself what was
        encoded: of trait OPAQUE or REENCODE, a cast, or "powersgd:rank=16" (the paper's: two factors of each tensor as
        a matrix, all dimensions but the last by the last). None: as they are. A dictionary chooses by edge: {(0, 1):
        "int4", "*": None}, where (0, 1) lies between stages 0 and 1 and "*" is any other.
    activations: the same for activations on their way forward.
    epilogue_only: encodes gradients only in a rank's epilogue, after its last forward, where no other work hides the
        send; False: all of them. Activations are encoded always.
    feedback: what encoding has left out of the gradient of one micro-batch is added to the next one's that is encoded
        on the same edge; forgotten when the step ends. None: for biased codecs, powersgd among them.
    smallest: bytes below which a tensor goes as it is.

    float32, bfloat16 and float16 on the CPU are encoded; other tensors are not (of those on other devices a warning
    says so), nor what skips a stage. A rank encodes
    when it launches the send and decodes just before it computes: both on the thread that steps. Any backend will do.
    Raises InvalidArgumentError for codecs that can't do it, unknown edges and schedules; MismatchError, on every rank,
    where ranks were given different things.
    Song et al., "Optimus-CC: Efficient Large NLP Model Training with 3D Parallelism Aware Communication Compression"
    (ASPLOS 2023).
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
