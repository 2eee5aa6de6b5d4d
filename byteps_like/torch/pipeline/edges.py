"""Which sends of a pipeline are encoded, and in which codec: by edge, direction and micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.torch.pipeline.coders import Kind, described, is_biased, kind_of

Edge = tuple[int, int]
Choice = object | Mapping[Edge | str, object]
"""A codec for all edges, or by edge: {(0, 1): "int4", "*": "int8"}."""
Codecs = tuple[Kind | None, ...]
"""By edge: the one between stages s and s + 1 is at s."""
Sends = frozenset[tuple[int, int]]
"""(stage that sends, micro-batch)."""


class Direction(Enum):
    """The direction of a send, by what is sent."""

    ACTIVATIONS = 1
    GRADIENTS = -1

    def sender(self, receiver: int) -> int:
        """The stage from which `receiver` gets it."""
        return receiver - self.value

    def edge(self, sender: int) -> int:
        """The number of the edge over which `sender` sends it."""
        return sender if self is Direction.ACTIVATIONS else sender - 1


@dataclass(frozen=True)
class Edges:
    """How a whole pipeline sends. `late`: the only gradients that are encoded; None: all. See compress_pipeline."""

    gradients: Codecs
    activations: Codecs
    late: Sends | None
    feedback: bool | None
    smallest: int

    def codec(self, way: Direction, sender: int, chunk: int) -> Kind | None:
        """For what stage `sender` sends of micro-batch `chunk`; None: as it is. The same for both ends."""
        if way is Direction.ACTIVATIONS:
            return self.activations[way.edge(sender)]
        if self.late is not None and (sender, chunk) not in self.late:
            return None
        return self.gradients[way.edge(sender)]

    def lazy(self, sender: int) -> bool:
        """Whether what encoding leaves out of the gradients that `sender` sends is added to the next ones."""
        kind = self.gradients[Direction.GRADIENTS.edge(sender)]
        return kind is not None and (is_biased(kind) if self.feedback is None else self.feedback)

    def described(self) -> dict[str, Any]:
        """What both ends must have been given alike; of edges by number."""
        late = None if self.late is None else sorted(self.late)
        return {
            "gradients": [described(codec) for codec in self.gradients],
            "activations": [described(codec) for codec in self.activations],
            "encoded micro-batches": [
                "all" if late is None else str([chunk for sender, chunk in late if sender == edge + 1])
                for edge in range(len(self.gradients))
            ],
            "smallest": [str(self.smallest)] * len(self.gradients),
        }


def codecs_by_edge(choice: Choice, argument: str, stages: int) -> Codecs:
    """`choice` for each edge of a pipeline. Raises InvalidArgumentError for what can't be."""
    chosen: Mapping[Any, Any] = choice if isinstance(choice, Mapping) else {"*": choice}
    edges = [(stage, stage + 1) for stage in range(stages - 1)]
    for key in chosen:
        if key != "*" and key not in edges:
            raise InvalidArgumentError(
                f"compress_pipeline: {argument} for {key!r}, which is no edge: of {stages} stages these are"
                f' {", ".join(map(str, edges)) or "none"}, and "*" is any other'
            )
    wanted = [chosen.get(edge, chosen.get("*")) for edge in edges]
    return tuple(None if one is None else kind_of(one, argument) for one in wanted)


def epilogue(schedule: Any) -> Sends:
    """The sends of gradients that come after the last forward of their rank, by the schedule's `pipeline_order`.

    Raises InvalidArgumentError for a schedule without one.
    """
    order, found = getattr(schedule, "pipeline_order", None), set()
    if not order:
        raise InvalidArgumentError(
            f"compress_pipeline: {type(schedule).__name__} has no pipeline_order to tell its epilogue by; pass"
            " epilogue_only=False"
        )
    for actions in order.values():
        flat = [each for action in actions if action is not None for each in action.sub_actions or (action,)]
        forwards = [place for place, action in enumerate(flat) if action.computation_type.name == "FORWARD"]
        for action in flat[max(forwards, default=-1) + 1 :]:
            if action.computation_type.name in ("FULL_BACKWARD", "BACKWARD_INPUT"):
                found.add((int(action.stage_index), int(action.microbatch_index)))
    return frozenset(found)


def check_alike(asked: Sequence[Mapping[str, Sequence[str]]], rank_of: Mapping[int, int]) -> None:
    """`asked`: what each rank describes. Raises MismatchError where the ends of an edge differ, on all ranks alike."""
    for kind, edges in asked[0].items():
        for edge in range(len(edges)):
            ends = rank_of[edge], rank_of[edge + 1]
            first, second = (asked[rank][kind][edge] for rank in ends)
            if first != second:
                raise MismatchError(
                    f"compress_pipeline: between stages {edge} and {edge + 1} rank {ends[0]} (of the pipeline's group)"
                    f" has {kind}={first}, rank {ends[1]} has {kind}={second}; call it alike on every rank",
                    operation="compress_pipeline",
                )
