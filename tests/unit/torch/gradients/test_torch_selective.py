"""Codecs chosen, timed, watched and left out while training runs, in worlds of threads with a clock of their own."""

from __future__ import annotations

import gc
import logging
import socket
import urllib.error
import urllib.request
import weakref
from functools import partial

import pytest
import torch

from byteps_like.compression.figures import Usual
from byteps_like.compression.registry import codec_of
from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.adapt.codec_monitor import watch
from byteps_like.torch.adapt.codec_trial import Probing
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.compression.policy import Auto, Compress
from byteps_like.torch.compression.rules import Rules
from byteps_like.torch.job import runtime as bps_runtime
from byteps_like.torch.job.membership import serve
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.reducer import GradientReducer
from byteps_like.tuner.probe import PACE
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting
from byteps_like.worker.local import LocalWorker
from tests.fakes.settings import configure
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import distance
from tests.scenarios.optimizers.compression import Given

SHAPE = (64, 40)
LIMIT = 1 + PACE.trials * (PACE.discard + PACE.measure)
"""Steps within which a slower codec is switched off."""


def world_of(size=2, hosts=1, coded=1.0, raw=0.1, per_byte=0.0):
    world = ThreadWorld(size, partition_bytes=4096)
    world.hosts = hosts
    world.takes = lambda codec, nbytes: (coded if codec else raw) + per_byte * nbytes
    return world


def gradient(step, rank, heavy=False):
    """Small whole numbers, whose sums are exact; or such of which one in twenty is large."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    found = torch.randint(-3, 4, SHAPE, generator=generator).float()
    return torch.where(torch.rand(SHAPE, generator=generator) < 0.05, 64.0 + found, found) if heavy else found


def steps(bps, rank, size, compression, count, check="off", every=0, heavy=False, rates=(1.0,), tune=None, **options):
    """Weights, the optimizer, and after each step whether gradients are encoded."""
    runtime = bps.job.runtime.current()
    configure(runtime, compression_check=check, compression_monitor=every)
    if hasattr(runtime.worker, "world"):
        world = runtime.worker.world
        runtime.clock = lambda: world.now
    model = Given({"w": SHAPE})
    if options.get("cross_barrier"):
        options["model"] = model
    with torch.no_grad():
        model.w.zero_()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=compression, **options
    )
    if tune is not None:
        Tuning(optimizer._distribution.reducer, pace=TrialPace(len(tune), 0, 1), search=Listed(tune))
    coded = []
    for step in range(count):
        optimizer.param_groups[0]["lr"] = rates[step % len(rates)]
        optimizer.zero_grad()
        model({"w": gradient(step, rank, heavy)}).backward()
        optimizer.step()
        coded.append(all(arena.is_coded for arena in optimizer._distribution.reducer.codecs.buckets))
    if options.get("cross_barrier"):
        optimizer.synchronize()
    return model.w.detach().clone(), coded, optimizer


def run(compression, count, world=None, servers=True, **options):
    world = world or world_of()
    body = partial(steps, compression=compression, count=count, **options)
    return run_world(world.size, body, world=world, servers=servers)


def exact(count, size=2, heavy=False):
    return -sum(gradient(step, rank, heavy) for step in range(count) for rank in range(size)) / size


NAMED = {"w": "blocksparse"}
"""Lossless: sums of whole numbers are exact with it and without."""


@pytest.mark.parametrize("cross_barrier", [False, True])
def test_a_slow_codec_is_switched_off_on_all_ranks_alike_and_sums_stay_exact(caplog, cross_barrier):
    world = world_of(size=3)
    with caplog.at_level(logging.INFO):
        ranks = run(NAMED, LIMIT + 4, world, check="on", cross_barrier=cross_barrier)
    for weights, coded, optimizer in ranks:
        assert distance(weights, exact(LIMIT + 4, 3)) < 1e-6
        assert coded == ranks[0][1] and coded[0] and not any(coded[LIMIT - 1 :])
        (report,) = optimizer.compression_report()
        assert report.codec == "blocksparse" and report.raw
    told = [record for record in caplog.records if "switched off" in record.getMessage()]
    assert len(told) == 1 and told[0].levelno == logging.WARNING, "rank 0 says it, once"
    assert "s with blocksparse and" in told[0].getMessage()


def test_a_fast_codec_stays_and_names_are_given_back():
    world = world_of(coded=0.1, raw=1.0)
    ranks = run(NAMED, LIMIT + 4, world, check="on")
    turns = [True] + [turn == 0 for turn in (0, 1, 0, 1) for _ in range(PACE.discard + PACE.measure)]
    assert ranks[0][1] == [True] * 5 + turns[6:] + [True] * 5


@pytest.mark.parametrize(("check", "times"), [("on", True), ("auto", False), ("off", False)])
def test_who_names_a_codec_is_not_timed_unless_asked(check, times):
    _, coded, optimizer = run(NAMED, 8, check=check)[0]
    assert optimizer._distribution.reducer.watchers.of(Probing).done is not times
    assert all(coded) is not times


def test_who_was_alone_and_who_comes_agree_that_nothing_is_left_to_time():
    """The only gradient with a codec comes sparse, and leaves its arena with the first round."""

    def body(bps, rank, size):
        table = torch.nn.Embedding(50, 4, sparse=True)

        def made():
            configure(bps.job.runtime.current(), compression_check="on")
            sgd = torch.optim.SGD(table.parameters(), lr=1.0)
            return bps.DistributedOptimizer(sgd, table.named_parameters(), compression={"weight": "int8"})

        if rank == 0:
            with bps_runtime.bound(LocalWorker()):
                optimizer = made()
        configure(bps.job.runtime.current(), compression_check="on")
        if rank == 1:
            optimizer = made()
        for _ in range(4):
            optimizer.zero_grad()
            table(torch.arange(5)).sum().backward()
            optimizer.step()
        return optimizer._distribution.reducer.watchers.of(Probing).done

    assert run_world(2, body) == [True, True]


@pytest.mark.parametrize("rates", [(1.0,), (1.0, 0.5, 0.25)])
def test_what_was_left_out_is_added_to_the_first_raw_gradient(rates):
    """Error feedback telescopes over every switch: nothing is lost, nothing counts twice."""
    count, ends_raw = 14, len(rates) == 1
    way = {"w": Compress("randomk:ratio=0.1", feedback=True)}
    grid = [Setting("server", coded=n % 3 > 0) for n in range(count - 2)] + [Setting("server", coded=not ends_raw)]
    ranks = run(way, count, tune=grid, rates=rates)
    residuals = [state.state_dict()["byteps_like"]["parameters"]["w"]["residual"] for _, _, state in ranks]
    total = -sum(rates[step % len(rates)] * (gradient(step, 0) + gradient(step, 1)) / 2 for step in range(count))
    left = rates[(count - 1) % len(rates)] * sum(residuals) / 2
    assert len(set(ranks[0][1])) == 2 and distance(ranks[0][0] - left, total) < 1e-5
    assert bool(left.any()) is not ends_raw, "raw rounds leave nothing"


def test_momentum_before_a_codec_goes_on_without_it():
    way = {"w": {"compressor": "onebit", "momentum": "nesterov", "momentum_mu": 0.5}}
    grid = [Setting("server", coded=False)] * 6
    weights = run(way, 7, tune=grid)[0][0]
    plain, momentum = torch.zeros(SHAPE), torch.zeros(SHAPE)
    for step in range(1, 7):
        mean = (gradient(step, 0) + gradient(step, 1)) / 2
        momentum = 0.5 * momentum + mean
        plain -= mean + 0.5 * momentum
    first = run(way, 1, tune=grid)[0][0]
    carried = sum(0.5 ** (step + 1) for step in range(1, 7)) * (gradient(0, 0) + gradient(0, 1)) / 2
    assert distance(weights - first, plain - carried) < 1e-5


def test_a_tuner_leaves_the_probe_to_itself():
    grid = [Setting("server", coded=coded) for coded in (True, False, True, False)]
    ranks = run(NAMED, 9, tune=grid)
    assert [setting.coded for setting in grid] == ranks[0][1][:4] and not ranks[0][2].tuned.coded
    assert all(distance(weights, exact(9)) < 1e-6 for weights, _, _ in ranks)


@pytest.mark.parametrize("servers", [True, False])
def test_a_gradient_that_a_codec_cuts_off_goes_raw_before_long(caplog, servers):
    way = {"w": Compress("ternary", feedback=False)}
    ranks = run(way, 6, every=3, heavy=True, servers=servers)
    for weights, coded, optimizer in ranks:
        assert coded == [True] * 3 + [False] * 3, "seen in round 3 and again in round 4"
        (report,) = optimizer.compression_report()
        assert (
            "of the elements are clamped" in report.raw
            and report.figures.clamp > 0.03
            and report.figures == ranks[0][2].compression_report()[0].figures
        )
        assert torch.equal(weights, ranks[0][0])
    told = [record.getMessage() for record in caplog.records if "uncompressed from now on" in record.getMessage()]
    assert len(told) == 1 and "ternary" in told[0] and "(w, ...)" in told[0] and "int8" in told[0]
    before = run(way, 4, every=0, heavy=True, servers=servers)[0][0]
    wanted = exact(6, heavy=True) - exact(4, heavy=True)
    assert distance(ranks[0][0] - before, wanted) < 1e-5, "what follows is exact"


def test_figures_are_kept_for_the_user_and_for_metrics():
    def body(bps, rank, size):
        _, coded, optimizer = steps(bps, rank, size, {"w": "thc4"}, 5, every=2)
        stats = bps.stats()
        return (
            all(coded),
            optimizer.compression_report()[0],
            {name: stats[name] for name in stats if "compression" in name},
        )

    for stays, report, stats in run_world(2, body, world=world_of()):
        assert stays and report.figures.nmse == stats["compression_nmse"] == pytest.approx(0.02, rel=0.3)
        assert stats["compression_clamped"] == pytest.approx(1 / 32, rel=0.3) and stats["compression_raw"] == 0.0
        assert "1 gradients (w): thc, encoded; NMSE 0.0" in str(report)


def test_prometheus_gets_them_from_a_worker():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = Config(worker_metrics_port=port)
    runtime = Runtime(LocalWorker(), config=config)
    serve(runtime)
    runtime.gauges = {"a": {"compression_nmse": 0.25}, "b": {"compression_nmse": 0.5}}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    runtime.close()
    assert 'byteps_like_compression_nmse{job="default",worker="0"} 0.5' in text
    assert "byteps_like_payload_sent_total" in text
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


@pytest.mark.parametrize("cross_barrier", [False, True])
def test_error_feedback_that_does_not_shrink_what_is_left_is_ended(cross_barrier):
    diverging = {"w": Compress("randomk:ratio=0.1,scale=1", feedback=True)}
    _, coded, optimizer = run(diverging, 14, every=1, cross_barrier=cross_barrier)[0]
    assert not coded[-1] and "bound" in optimizer.compression_report()[0].raw
    shrinking = {"w": Compress("randomk:ratio=0.1", feedback=True)}
    assert all(run(shrinking, 14, every=1)[0][1])


@pytest.mark.parametrize("cross_barrier", [False, True])
def test_looks_agree_after_a_join(cross_barrier):
    """Where the barrier is crossed, a rank hears of another's join after it has counted the round."""

    def body(bps, rank, size):
        runtime = bps.job.runtime.current()
        configure(runtime, compression_check="off", compression_monitor=4)
        model = Given({"w": SHAPE})
        options = {"cross_barrier": True, "model": model} if cross_barrier else {}
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = bps.DistributedOptimizer(sgd, model.named_parameters(), compression=NAMED, **options)
        for count in (6 + (rank == 0), 9):
            for step in range(count):
                optimizer.zero_grad()
                model({"w": gradient(step, rank)}).backward()
                optimizer.step()
            bps.join()
        return optimizer.compression_report()[0].figures

    figures = run_world(2, body, world=world_of())
    assert figures[0] is not None and figures[0] == figures[1]


def test_what_is_usual_is_said_by_rank_0(monkeypatch):
    """Machines may differ in it; ranks that judged by their own would not all fall back."""
    by_rank = [Usual(nmse=1e-9, clamp=0.0), Usual(nmse=1.0, clamp=0.0)]
    monkeypatch.setattr(
        "byteps_like.compression.figures.usual",
        lambda spec, world, numel: by_rank[bps_runtime.current().worker.rank],
    )
    ranks = run({"w": "thc4"}, 4, every=1)
    assert ranks[0][1] == ranks[1][1] == [True, False, False, False]


def test_looks_keep_no_arena_that_is_gone():
    def body(bps, rank, size):
        configure(bps.job.runtime.current(), compression_monitor=1)
        model = Given({"0": SHAPE})
        reducer = GradientReducer(model.named_parameters, ReducerOptions(Rules([("*", Compress("int8"))], min_bytes=0)))
        watch(reducer, 1)
        arenas = []
        for turn in range(3):
            model({name: gradient(turn, rank) for name, _ in model.named_parameters()}).backward()
            reducer.synchronize()
            arenas.append(weakref.ref(reducer.codecs.buckets[0]))
            del model._parameters[str(turn)]
            model.register_parameter(str(turn + 1), torch.nn.Parameter(torch.zeros(SHAPE)))
        reducer.refresh()
        gc.collect()
        return [arena() is not None for arena in arenas]

    assert run_world(2, body)[0][0] is False


@pytest.fixture
def nanosecond(monkeypatch):
    """Every codec takes 1 ns to encode an element, and nothing else takes time; raw takes none at all."""
    curve, none = (0.0, 1e-9, 0.0), (0.0, 0.0, 0.0)
    monkeypatch.setattr(
        "byteps_like.torch.gradients.selecting._costs",
        lambda codecs, world: [*none * 4, *(number for _ in codecs for number in (*curve, *none * 3))],
    )


def auto(compression, world, count=3, **options):
    ranks = run(compression, count, world, check="auto", **options)
    assert all(coded == ranks[0][1] for _, coded, _ in ranks)
    return [[report.codec for report in optimizer.compression_report()] for _, _, optimizer in ranks], ranks


def test_auto_within_one_host_stays_raw(caplog):
    world = world_of(raw=0.0, per_byte=1e-6)
    with caplog.at_level(logging.INFO, "byteps_like.torch.gradients.selecting"):
        codecs, ranks = auto({"w": "auto"}, world)
    assert codecs == [[], []] and torch.equal(ranks[0][0], exact(3))
    assert [record.getMessage() for record in caplog.records] == [
        "compression=auto: gradients go raw, because all are on one host"
    ]
    assert not any(".auto0" in name for name in world.pushed), "nothing is measured"


def test_auto_beside_portable_workers_stays_raw(caplog):
    """They can't encode, nor say where they are: who measured would wait for them."""
    world = world_of(hosts=2, raw=0.0, per_byte=1e-6)
    world.encode = False
    with caplog.at_level(logging.INFO, "byteps_like.torch.gradients.selecting"):
        codecs, _ = auto({"w": "auto"}, world)
    assert codecs == [[], []] and "portable" in caplog.records[0].getMessage()
    assert not any(".auto0" in name for name in world.pushed), "nothing is measured"


@pytest.mark.parametrize(
    ("way", "per_byte", "found"),
    [
        ("auto:bf16,thc4", 1e-6, ["thc"]),
        ("auto:bf16", 1e-6, ["bf16"]),
        ("auto:bf16,thc4", 1e-10, []),  # faster than any encoding
    ],
)
@pytest.mark.usefixtures("nanosecond")
def test_auto_between_hosts_takes_what_is_fastest_by_measured_curves(way, per_byte, found):
    world = world_of(hosts=2, raw=1e-9, coded=1e-9, per_byte=per_byte)
    codecs, _ = auto({"w": way}, world)
    assert codecs == [found] * 2


@pytest.mark.usefixtures("nanosecond")
def test_auto_s_choice_is_timed():
    world = world_of(hosts=2)
    world.takes = lambda codec, nbytes: 9.0 if codec else 1e-9 + 1e-6 * nbytes
    codecs, ranks = auto({"w": "auto:int8"}, world, count=LIMIT + 1)
    assert codecs == [["int"]] * 2 and ranks[0][1][0] and not ranks[0][1][-1]


def test_auto_leaves_feedback_to_the_optimizer_and_refuses_what_it_can_not_have():
    way = Auto.of("topk,thc4")
    assert [codec.name for codec in way.candidates] == ["topk", "thc"]
    with pytest.raises(InvalidArgumentError, match="thunder"):
        Auto.of("thunder")

    def body(bps, rank, size):
        with pytest.raises(InvalidArgumentError, match="DistributedOptimizer"):
            bps.DDPHookState(compression="auto")
        with pytest.raises(InvalidArgumentError, match="auto"):
            bps.allreduce(torch.ones(3), compression="auto")

    run_world(1, body)
    assert codec_of("thc4") in way.candidates
