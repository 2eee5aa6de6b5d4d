"""Every field of what members tell each other survives the wire, so that none is forgotten in wire.py."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from byteps_like.control.calls import wire
from byteps_like.control.members.seats import JoinClaim
from byteps_like.control.types import Disagreement, Member, Move, View, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import BytePSLikeError, PeerLostError
from byteps_like.worker.api import Declared, Meeting, Question, TensorSpec

STAYS_HERE = {
    (TensorSpec, "says_all"): "only who declares needs it",
    (Disagreement, "ranks"): "the scheduler chooses by it whom to tell",
    (Disagreement, "given_up"): "the scheduler no longer counts who waits for these",
}
"""Fields that are not sent, and why."""

KNOWN: dict[tuple[type, str], Any] = {
    (TensorSpec, "codec"): "onebit:block=64",
    (TensorSpec, "on_loss"): "finish",
    (TensorSpec, "partition_bytes"): 4096,
    (View, "incarnation"): b"0123456789abcdef",
}
"""Where any value of the type would be refused."""


def value_of(hint: Any, name: str) -> Any:
    """One that is nobody's default."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return value_of(next(one for one in arguments if one is not type(None)), name)
    if origin is tuple:
        inner = arguments[:1] * 2 if arguments[-1] is Ellipsis else arguments
        return tuple(value_of(one, name) for one in inner)
    if origin in (dict, Mapping):
        return {f"{name} key": value_of(arguments[1], name)}
    if dataclasses.is_dataclass(hint):
        return filled(hint)  # type: ignore[arg-type]
    if issubclass(hint, BytePSLikeError):
        return PeerLostError(f"the {name}", rank=3, peer="worker 1", key="k", operation="sum", elapsed=1.5)
    if issubclass(hint, enum.Enum):
        return list(hint)[-1]
    return {str: f"the {name}", int: 7, float: 2.5, bool: True, bytes: b"bytes"}[hint]


def filled(kind: type, **given: Any) -> Any:
    """An instance none of whose fields has its default."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        value = given.get(item.name, KNOWN.get((kind, item.name), value_of(hints[item.name], item.name)))
        values[item.name] = not item.default if isinstance(item.default, bool) else value
    return kind(**values)


def by_watch(message: WatchEvent) -> WatchEvent:
    return wire.event_from_wire(pb.WatchMessage.FromString(wire.to_watch(message).SerializeToString()).event)


def world_by_watch(world: View) -> View:
    return wire.view_from_wire(pb.WatchMessage.FromString(wire.to_watch(world).SerializeToString()).world)


def declared_by_wire(declared: Declared) -> Declared:
    return wire.declared_from_wire(declared.spec, wire.declared_to_wire(declared))


ROUND_TRIPS: dict[type, Callable[[Any], Any]] = {
    Member: lambda member: wire.member_from_wire(wire.member_to_wire(member)),
    View: world_by_watch,
    WatchEvent: by_watch,
    JoinClaim: lambda claim: wire.claim_from_wire(wire.claim_to_wire(claim)),
    Meeting: lambda meeting: wire.meeting_from_wire(wire.meeting_to_wire(meeting)),
    TensorSpec: lambda spec: wire.spec_from_wire(wire.spec_to_wire(spec)),
    Declared: declared_by_wire,
}


def differences(sent: Any, received: Any, path: str) -> Iterator[str]:
    """Names of the fields, those of fields too, that are not what was sent."""
    if dataclasses.is_dataclass(sent) and type(sent) is type(received):
        for item in dataclasses.fields(sent):
            if (type(sent), item.name) not in STAYS_HERE:
                inner = getattr(sent, item.name), getattr(received, item.name)
                yield from differences(*inner, f"{path}.{item.name}")
    elif isinstance(sent, tuple) and isinstance(received, tuple) and len(sent) == len(received):
        for one, other in zip(sent, received, strict=True):
            yield from differences(one, other, path)
    elif isinstance(sent, BytePSLikeError):
        if (type(sent), str(sent), vars(sent)) != (type(received), str(received), vars(received)):
            yield path
    elif sent != received:
        yield path


@pytest.mark.parametrize("kind", ROUND_TRIPS, ids=lambda kind: kind.__name__)
def test_every_field_survives_the_wire(kind: type) -> None:
    sent = filled(kind)
    lost = list(differences(sent, ROUND_TRIPS[kind](sent), kind.__name__))
    assert not lost, f"{lost}: copy it both ways in byteps_like/control/calls/wire.py, or say why not in STAYS_HERE"


def test_what_stays_here_is_a_field() -> None:
    for kind, name in STAYS_HERE:
        assert name in {item.name for item in dataclasses.fields(kind)}


def test_nothing_that_is_sent_has_its_default() -> None:
    for kind in (*ROUND_TRIPS, Move, Disagreement, Question):
        sent = filled(kind)
        for item in dataclasses.fields(kind):
            assert getattr(sent, item.name) != item.default, (kind, item.name)
