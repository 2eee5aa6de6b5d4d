"""The published effects, as ratios: what the model must show if it is to be believed about anything else."""

from __future__ import annotations

import pytest

from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.planner import workloads
from byteps_like.planner.call import call
from byteps_like.planner.clock import Process, SimulatedClock
from byteps_like.planner.cluster import Cluster, ClusterCosts, SendOrder, Settings
from byteps_like.planner.link import Link, NicModel, Segment
from byteps_like.planner.predict import predict
from byteps_like.planner.shift.plan import Arc, PeriodicJob, plan_shifts
from byteps_like.planner.workload import Layer, Workload

B = 0.4e9 / 8  # 400 Mb/s
KIB, MIB = 1 << 10, 1 << 20
FREE = ClusterCosts(latency=0.0, frame=0.0, launch=0.0, sum_rate=1e15, memory_rate=1e15)


def trace(name: str, ratio: float = 1.0) -> Workload:
    """48 MB of gradients, whose way one way takes `ratio` times the compute."""
    scaled = workloads.load(name).scaled(total_bytes=48e6)
    return scaled.scaled(compute_seconds=scaled.nbytes / B / ratio)


def test_fused_buckets_have_an_optimum_in_the_middle() -> None:
    """Li et al., PyTorch Distributed, VLDB 2020: 25 MB by default."""
    workload = workloads.load("resnet50").scaled(compute_seconds=0.1)
    cluster = Cluster(32, rate=1.25e9, costs=ClusterCosts(latency=100e-6, frame=20e-6, launch=1e-4))
    steps = {
        size: predict(cluster, workload, Settings(partition_bytes=size * MIB, order=SendOrder.FIFO)).step
        for size in (1, 8, 25, 100)
    }
    assert steps[25] <= 1.1 * min(steps.values())
    assert steps[1] > 1.2 * steps[25]
    assert steps[100] > 1.2 * steps[25]


def test_sending_from_within_backward() -> None:
    """Zhang et al., Poseidon, ATC 2017: wait-free backpropagation."""
    cluster = Cluster(4, 4, rate=B)
    late, early = (predict(cluster, trace("vgg16"), Settings(order=SendOrder.FIFO, overlap=on)) for on in (False, True))
    assert late.step >= 1.3 * early.step


def test_spare_servers_against_a_ring() -> None:
    """Jiang et al., BytePS, OSDI 2020: 2(n-1)/n bytes against one."""
    workload = Workload("sum", (Layer("all", (("w", (4 * MIB,)),), 0.0, 0.0),), 1, "sums")
    ring, servers = (predict(Cluster(8, k, rate=B), workload).step for k in (0, 8))
    assert ring / servers == pytest.approx(2 * 7 / 8, rel=0.1)
    assert ring >= 1.5 * servers


VANILLA = Settings(partition_bytes=1 << 30, credit_bytes=1e15, order=SendOrder.FIFO, whole=True, segment_bytes=1 << 40)


def scheduled(partition: int, credit: float) -> Settings:
    return Settings(partition, 1 << 40, credit, unsent_bytes=0, barrier=False, whole=True)


BYTESCHEDULER = Cluster(1, 1, rate=B, shards=1, costs=ClusterCosts(latency=0.0, frame=3e-4, launch=0.0, sum_rate=1e15))
"""One worker's view of a server that sums at once, 0.3 ms for each message."""


@pytest.mark.parametrize(("name", "least"), [("vgg16", 1.4), ("gpt2", 1.15), ("resnet50", 1.08)])
def test_priorities_across_the_barrier(name: str, least: float) -> None:
    """Peng et al., ByteScheduler, SOSP 2019, against whole tensors in order of readiness, with a barrier."""
    before = predict(BYTESCHEDULER, trace(name), VANILLA).step
    assert before / predict(BYTESCHEDULER, trace(name), scheduled(512 * KIB, MIB)).step >= least


@pytest.mark.parametrize(
    ("partition", "credit", "times"),
    [(512 * KIB, 1, 1.97), (512 * KIB, 512 * KIB, 1.68), (32 * KIB, MIB, 1.40), (16 * MIB, 32 * MIB, 1.40)],
)
def test_wrong_partitions_and_credit_cost(partition: int, credit: int, times: float) -> None:
    """The figures of docs/how-to/planner.md, where a credit of 1 MiB is the best."""
    best = predict(BYTESCHEDULER, trace("vgg16"), scheduled(512 * KIB, MIB)).step
    assert predict(BYTESCHEDULER, trace("vgg16"), scheduled(partition, credit)).step / best == pytest.approx(
        times, rel=0.02
    )


def test_deferred_weight_gradients() -> None:
    """Oh et al., Out-of-order backprop, EuroSys 2022."""
    cluster, workload = Cluster(4, 4, rate=B, shards=1), trace("bert-base")

    def step(first_k: int | None) -> float:
        return predict(cluster, workload, Settings(512 * KIB, barrier=False, first_k=first_k)).step

    fifo, plain, best = predict(cluster, workload, Settings(512 * KIB, order=SendOrder.FIFO)).step, step(None), step(35)
    assert fifo >= 1.1 * best
    assert plain >= 1.05 * best
    assert plain == step(53)
    assert step(10) > plain


@pytest.mark.parametrize("nodes", [4, 8])
def test_bytes_of_sufficient_factors(nodes: int) -> None:
    """Poseidon's counts per node, sent and received: 2 K (P-1) (M+N) against 4 M N (P-1)/P through servers beside."""
    m, n, batch, layout = 4096, 4096, 32, Layout(tuple(range(nodes)))
    factors = call(Kind.ALL_GATHER, "ring", layout, batch * (m + n), Cluster(nodes)).sent
    moved = sum(nbytes for link, nbytes in factors.items() if 0 in link)
    assert moved == 4 * 2 * batch * (nodes - 1) * (m + n)
    matrix = Workload("fc", (Layer("fc", (("w", (m, n)),), 0.0, 0.0),), batch, "images")
    through = predict(Cluster(nodes, colocated=True, costs=FREE), matrix, exact=True)
    assert through.sent + through.received == pytest.approx(4 * 4 * m * n * (nodes - 1) / nodes, rel=0.01)


def test_two_levels_of_all_to_all() -> None:
    """Hwang et al., Tutel, MLSys 2023: messages are fewer by the ranks of a host, to which the gain is bounded."""

    def gain(ranks: int, local: int, nbytes: int, rate: float, message: float, memory: float) -> float:
        layout = Layout(tuple(rank // local for rank in range(ranks)))
        costs = ClusterCosts(latency=5e-6, frame=message, memory_rate=memory)
        cluster = Cluster(ranks, rate=rate, per_host=local, costs=costs)
        linear, two = (
            call(Kind.ALL_TO_ALL, name, layout, nbytes // ranks // 4, cluster, mirror=True).seconds
            for name in ("pairwise", "2dh")
        )
        return linear / two

    assert gain(16, 4, 64 * KIB, B, 0.4e-3, 4e9) >= 1.3
    assert gain(16, 4, 4 * MIB, B, 0.4e-3, 4e9) == pytest.approx(1.0, abs=0.1)
    assert 5 <= gain(1024, 8, MIB, 25e9, 7e-6, 200e9) <= 8
    assert gain(2048, 8, MIB, 25e9, 7e-6, 200e9) == pytest.approx(7.8, abs=0.05)


def test_two_rings_on_two_cards() -> None:
    """Wang et al., TopoOpt, NSDI 2023: links that one ring leaves idle."""
    layout = Layout(tuple(range(6)))
    one, two = (
        call(Kind.ALL_REDUCE, name, layout, 3 * MIB, Cluster(6), direct=True).seconds
        for name in ("ring", "multi_ring:1,5")
    )
    assert one >= 1.8 * two


def together(shift: float) -> float:
    """Seconds of an iteration of two jobs, 1 s of compute and 1 s of the line that they share, one `shift` later."""
    clock, ends = SimulatedClock(), []
    line, far = NicModel(clock, "line", 1e6), NicModel(clock, "far", 1e12)

    class Job:
        def __init__(self) -> None:
            self.left = self.landed = 0
            self.link = Link((line, far), self, self.deliver)

        def next_segment(self) -> Segment | None:
            if not self.left:
                return None
            self.left -= 1
            return Segment(self, 0, 10_000 - 64)

        def sent(self, segment: Segment) -> None:
            self.landed += 1

        def deliver(self, segment: Segment) -> None:
            if self.landed == 100:
                ends.append(clock.now)
                clock.start(self.run())

        def run(self, wait: float = 0.0) -> Process:
            yield wait + 1.0
            if len(ends) < 16:
                self.left, self.landed = 100, 0
                self.link.kick()

    clock.start(Job().run())
    clock.start(Job().run(shift))
    clock.run()
    return (ends[15] - ends[7]) / 4


def test_jobs_that_share_a_link_are_faster_apart() -> None:
    """Rajasekaran et al., CASSINI, NSDI 2024."""
    assert together(0.0) == pytest.approx(3.0, rel=0.02)
    jobs = [PeriodicJob(name, 2.0, (Arc(1.0, 1.0, 10.0),)) for name in "ab"]
    plan = plan_shifts(jobs, {"link": 10.0}, slack=0.0)
    assert together(plan.shifts["b"] - plan.shifts["a"]) == pytest.approx(2.0, rel=0.02)
