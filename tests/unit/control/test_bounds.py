"""What a member asks of the scheduler is looked at before anything is made of it, and what it leaves is given back."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from byteps_like.config import Config
from byteps_like.control import bounds
from byteps_like.control.calls import wire
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.rpc import Caller
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.control.members.forming import Forming, Terms
from byteps_like.control.members.seats import JoinClaim, Seat, Waiting, heartbeat_interval
from byteps_like.control.placing.declarations import Declarations
from byteps_like.control.placing.placement import Placer
from byteps_like.control.placing.weights import check_replan
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.control.v1.server_admin_pb2 import DrainRequest
from byteps_like.dtypes import DType
from byteps_like.errors import CapacityError, ConfigError, DeadlineError, InvalidArgumentError, RefusedError
from byteps_like.server.admin import AdminServer, _ask
from byteps_like.worker.api import Declared, TensorSpec
from tests.fakes.views import view_of

SECRET = "a secret that only the tests know"
NAN, INF = float("nan"), float("inf")
MEMBER = Member(MemberRole.WORKER, 0, "boot", "here", 1)


def claim(**changes: Any) -> JoinClaim:
    fields = {"id": "x", "member": MEMBER, "world_size": 1, "num_servers": 0, "settings": {}, "timeout": 1.0}
    return JoinClaim(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"timeout": NAN}, "timeout_s=nan"),
        ({"timeout": INF}, "timeout_s=inf"),
        ({"timeout": -1.0}, "timeout_s=-1.0"),
        ({"world_size": 1 << 31}, "world_size="),
        ({"num_servers": 1 << 30}, "num_servers="),
        ({"num_servers": -2}, "num_servers="),
        ({"member": Member(MemberRole.SERVER, 0, "b", "h", 1, shards=10_000_000)}, "shards=10000000"),
        ({"member": Member(MemberRole.SERVER, 0, "b", "h", 1, gbps=NAN)}, "gbps=nan"),
        ({"member": Member(MemberRole.SERVER, -7, "b", "h", 1)}, "rank=-7"),
        ({"member": Member(MemberRole.SERVER, 0, "b", "h" * 100_000, 1)}, "bytes of the request="),
        ({"settings": {"partition_bytes": "63"}}, "partition_bytes=63 is not 64"),
        ({"settings": {str(number): "x" for number in range(20_000)}}, "bytes of the request="),
    ],
)
def test_claims_that_can_not_be(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        wire.claim_from_wire(wire.claim_to_wire(claim(**changes)))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (TensorSpec("w", DType.INT8, (1,), partition_bytes=1), "partition_bytes=1 "),
        (TensorSpec("w", DType.INT8, (1,), partition_bytes=1 << 40), "partition_bytes="),
        (TensorSpec("w", DType.FLOAT32, (1 << 62, 1 << 62)), "bytes of tensor 'w'="),
        (TensorSpec("w", DType.FLOAT32, (1,) * 1000), "number of extents=1000"),
        (TensorSpec("w" * 5000, DType.FLOAT32, (1,)), "tensor's name .* has 5000 characters"),
        (TensorSpec("w", DType.FLOAT32, (1,), codec="c" * 5000), "codec .* has 5000 characters"),
    ],
)
def test_tensors_that_can_not_be(spec: TensorSpec, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        wire.spec_from_wire(wire.spec_to_wire(spec))


@pytest.mark.parametrize(("size", "fits"), [(63, False), (64, True), (1 << 30, True), ((1 << 30) + 1, False)])
def test_partitions_may_be_as_small_and_as_large_by_setting_and_by_tensor(size: int, fits: bool) -> None:
    spec = wire.spec_to_wire(TensorSpec("w", DType.INT8, (1,), partition_bytes=size))
    server = Member(MemberRole.SERVER, 0, "boot", "here", 1, shards=1)
    world = View("job", 1, (MEMBER,), (server,))
    asks: list[Callable[[], object]] = [
        lambda: Config.from_env({}, partition_bytes=size),
        lambda: wire.spec_from_wire(spec),
        lambda: wire.claim_from_wire(wire.claim_to_wire(claim(settings={"partition_bytes": str(size)}))),
        lambda: check_replan(world, size, [1.0]),
    ]
    for ask in asks:
        if fits:
            ask()
        else:
            with pytest.raises((ConfigError, InvalidArgumentError), match=f"partition_bytes={size} "):
                ask()


def test_waits_counters_and_weights_are_numbers() -> None:
    with pytest.raises(InvalidArgumentError, match="since_s=nan"):
        wire.waiting_from_wire(wire.waiting_to_wire(Waiting(name="a", round=1, since=NAN)))
    assert bounds.numbers({"a": 1.0, "b": NAN, "c": INF}) == {"a": 1.0}
    server = Member(MemberRole.SERVER, 0, "boot", "here", 1, shards=1)
    world = View("job", 1, (MEMBER,), (server, server))
    check_replan(world, 4096, [1.0, 0.0])
    for weights in ([NAN, 1.0], [1.0, NAN], [INF, 1.0], [1e308, 1e308], [-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(InvalidArgumentError, match="weights"):
            check_replan(world, 0, weights)


def test_too_many_partitions_are_refused_before_they_are_made() -> None:
    placer = Placer([8] * 4, 4 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="partitions, more than 65536; raise partition_bytes=4096"):
            placer.place(0, TensorSpec("w", DType.INT8, (1 << 46,), partition_bytes=4096))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert set(placer.loads().values()) == {0}


def test_names_of_an_epoch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_like.control.placing.declarations.MOST_NAMES", 3)
    monkeypatch.setattr("byteps_like.control.placing.declarations.MOST_PARTS", 8)
    table = Declarations(view_of(range(2)), Placer([1], 4096))
    for number in range(3):
        table.declare(0, [TensorSpec(f"{number}", DType.INT8, (1,))])
    table.declare(1, [TensorSpec("0", DType.INT8, (1,))])
    with pytest.raises(CapacityError, match="tensors of this epoch: 4 are more than 3"):
        table.declare(0, [TensorSpec("another", DType.INT8, (1,))])
    with pytest.raises(CapacityError, match="partitions of this epoch's tensors: 9 are more than 8"):
        Declarations(view_of(range(2)), Placer([1], 4096)).declare(0, [TensorSpec("w", DType.INT8, (9 * 4096,))])


def test_shards_of_all_servers_are_bounded() -> None:
    forming = Forming(Terms(num_servers=4))
    for rank in range(2):
        member = Member(MemberRole.SERVER, rank, "boot", "here", 1, shards=40_000)
        wanted = claim(id=f"s{rank}", member=member, num_servers=4)
        if rank == 0:
            forming.check(wanted)
            forming.add(Seat(wanted, member, 0.0, None))
        else:
            with pytest.raises(RefusedError, match="makes shards=80000 of all servers, more than 65536"):
                forming.check(wanted)


def test_many_members_send_heartbeats_less_often() -> None:
    assert heartbeat_interval(1.0, 8) == 1.0
    assert heartbeat_interval(1.0, 1000) == 5.0
    assert heartbeat_interval(10.0, 1000) == 10.0


@pytest.fixture
def client() -> Iterator[ControlClient]:
    scheduler = SchedulerServer(Config(job="bounds", secret=SECRET, scheduler="127.0.0.1:0"))
    config = Config(job="bounds", secret=SECRET, scheduler=scheduler.start(), world_size=2, num_servers=0)
    members = [ControlClient(config) for _ in range(2)]
    members[0].scheduler = scheduler  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda pair: pair[1].join(Member(MemberRole.WORKER, pair[0], "b", "h", 1)), enumerate(members)))
    try:
        yield members[0]
    finally:
        for member in members:
            member.leave()
        scheduler.stop()


def test_barriers_that_timed_out_leave_nothing_behind(client: ControlClient) -> None:
    for number in range(5):
        with pytest.raises(DeadlineError, match="was not reached by worker 1"):
            client.barrier(f"b{number}", timeout=0.05)
    with pytest.raises(InvalidArgumentError, match="timeout=nan"):
        client.barrier("nan", timeout=NAN)
    service = client.scheduler._service  # type: ignore[attr-defined]
    assert service._barrier_calls == {} and service._barriers.pending() == []


def test_events_are_kept_for_the_first_who_listens_only() -> None:
    client = ControlClient(Config(job="bounds", secret=SECRET, scheduler="127.0.0.1:1"))
    warnings = [WatchEvent(EventKind.WARNING, str(number)) for number in range(3000)]
    client._on_event(warnings[0])
    heard: list[WatchEvent] = []
    client.on_event(heard.append)
    for warning in warnings[1:]:
        client._on_event(warning)
    assert heard == warnings
    assert not client._events._unheard


def test_a_model_of_thousands_of_tensors_is_declared_in_batches(
    client: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    genuine: Callable[..., bytes] = Caller._body

    def measured(self: Caller, name: str, request: Any) -> bytes:
        body = genuine(self, name, request)
        sizes.append(len(body)) if name == "Declare" else None
        return body

    monkeypatch.setattr(Caller, "_body", measured)
    monkeypatch.setattr(
        "byteps_like.control.calls.service.Declarations.declare",
        lambda self, rank, specs: [_nowhere(spec) for spec in specs],
    )
    monkeypatch.setattr(
        "byteps_like.control.calls.service.SchedulerService._table",
        lambda self: Declarations(view_of(range(2)), Placer([1], 64)),
    )
    specs = [TensorSpec(f"{number}" + "x" * 1500, DType.FLOAT32, (1,)) for number in range(3000)]
    assert [declared.spec for declared in client.declare(specs)] == specs
    assert max(sizes) < 1 << 20 and sum(sizes) > 4 << 20
    assert client.declare([]) == []


def _nowhere(spec: TensorSpec) -> Declared:
    return Declared(spec, 0, ())


def test_a_server_takes_no_drain_that_never_ends() -> None:
    config = Config(job="bounds", secret=SECRET)
    server = AdminServer(config, lambda: {"open_rounds": 1.0})
    address = server.start("127.0.0.1")
    started = time.monotonic()
    try:
        with pytest.raises(InvalidArgumentError, match="timeout_s=nan"):
            control_loop().run(_ask(config, address, "Drain", DrainRequest(timeout_s=NAN), 5.0))
    finally:
        server.stop()
    assert time.monotonic() - started < 10
