"""Tuning of optimizers in worlds of threads: weights as without it, the same setting on all ranks at the same step."""

from __future__ import annotations

import pytest
import torch

from byteps_like.errors import ConfigError, InvalidArgumentError, PeerLostError
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.factors import link
from byteps_like.torch.factors.choice import FactorLink
from byteps_like.torch.job.runtime import bound
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting, load, save
from byteps_like.worker.local import LocalWorker
from tests.fakes.settings import configure
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.checks import same_everywhere
from tests.scenarios.models import batch, distance, flat, loss_of, mlp
from tests.scenarios.optimizers.tuned import GRID, PACE, STEPS


def make(bps, model, grid=None, momentum=0.9, **options):
    if options.get("cross_barrier") or options.get("sufficient_factors"):
        options["model"] = model
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum), model.named_parameters(), **options
    )
    if grid is not None:
        Tuning(optimizer._distribution.reducer, pace=PACE, search=Listed(grid))
    return optimizer


def train(bps, rank, optimizer, model, steps, on_step=lambda step: None):
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(100 * rank + step)).backward()
        optimizer.step()
        on_step(step)
    return flat(model)


def run(size, grid, servers=True, **options):
    """Weights, and the settings in force after each step, of each rank."""

    def body(bps, rank, size):
        model, seen = mlp(), []
        optimizer = make(bps, model, grid, **options)
        weights = train(bps, rank, optimizer, model, STEPS, lambda _: seen.append(optimizer.tuned))
        tuning = optimizer._distribution.reducer.watchers.of(Tuning)
        return weights, seen, tuning.log if tuning else None

    return run_world(size, body, world=ThreadWorld(size), servers=servers)


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.parametrize("compression", [None, {"*weight": "powersgd:rank=2"}])
def test_steps_that_overlap_are_tuned_too(servers, compression):
    grid = GRID if servers else [Setting("allreduce", size) for size in (1024, 512, 2048)] * 2
    pace = TrialPace(trials=len(grid), discard=1, measure=2)

    def body(bps, rank, size):
        model, seen, waited = mlp(), [], []
        optimizer = make(bps, model, cross_barrier=True, compression=compression)
        reducer = optimizer._distribution.reducer
        Tuning(reducer, pace=pace, search=Listed(grid))
        depart = reducer.depart
        reducer.depart = lambda: waited.append((flight := depart()) is None) or flight
        train(bps, rank, optimizer, model, 3 * pace.trials + 5, lambda _: seen.append(optimizer.tuned))
        optimizer.synchronize()
        return flat(model), seen, waited, len(reducer.watchers.of(Tuning).log.trials)

    (weights, seen, waited, trials), other = run_world(2, body, world=ThreadWorld(2), servers=servers)
    expected = run_world(2, plainly, 3 * pace.trials + 5, compression, world=ThreadWorld(2), servers=servers)[0]
    assert torch.equal(weights, expected) and seen == other[1] and trials == pace.trials
    assert seen[: 3 * pace.trials] == [setting for setting in grid for _ in range(3)]
    assert [step for step, blocked in enumerate(waited) if blocked] == list(range(0, 3 * pace.trials + 1, 3))


def plainly(bps, rank, size, steps, compression=None):
    model = mlp()
    return train(bps, rank, make(bps, model, compression=compression), model, steps)


@pytest.mark.parametrize("size", [2, 3])
def test_weights_are_those_of_the_untuned_run_to_the_bit(size):
    tuned, plain = run(size, GRID), run(size, None)
    for (weights, _, _), (expected, _, _) in zip(tuned, plain, strict=True):
        assert torch.equal(weights, expected)


@pytest.mark.parametrize("servers", [True, False])
def test_factors_are_tuned_too(servers, monkeypatch):
    """Some layers of the model go as factors, the others as matrices, which follow every cut."""
    monkeypatch.setattr(link, "measured", lambda *_: FactorLink())  # the choice is by bytes alone
    grid = GRID if servers else [Setting("allreduce", size) for size in (1024, 512, 2048)] * 2
    tuned = run(2, grid, servers, sufficient_factors="auto")
    plain = run(2, None, servers, sufficient_factors="auto")
    assert tuned[0][1] == tuned[1][1] and [tuned[0][1][2 * trial] for trial in range(len(grid))] == grid
    for (weights, _, _), (expected, _, _) in zip(tuned, plain, strict=True):
        assert torch.equal(weights, expected)


def test_each_route_has_its_own_choice_between_factors_and_matrix(monkeypatch):
    """Of 64 x 64 and 20 rows a rank: 10 KiB of factors, matrices of 11 KiB among three workers, of 8 KiB by servers."""
    monkeypatch.setattr(link, "measured", lambda *_: FactorLink())
    pace, steps = TrialPace(trials=4, discard=1, measure=2), 14
    grid = [Setting("allreduce", 1024), Setting("server", 1024), Setting("allreduce", 512), Setting("server", 512)]

    def body(bps, rank, size):
        model, reference = (mlp(widths=(64, 64)) for _ in range(2))
        optimizer, seen = make(bps, model, sufficient_factors="auto"), []
        plain = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
        reducer = optimizer._distribution.reducer
        Tuning(reducer, pace=pace, search=Listed(grid))
        for step in range(steps):
            optimizer.zero_grad(), plain.zero_grad()
            for other in range(size):
                x, y = batch(100 * other + step, rows=20, inputs=64, outputs=64)
                (loss_of(reference, x, y) / size).backward()
                if other == rank:
                    loss_of(model, x, y).backward()
            by_factors = [layer.left for layer in reducer.beside[-1].layers]
            route = optimizer.tuned.route if optimizer.tuned else "none"
            optimizer.step(), plain.step()
            assert distance(flat(model), flat(reference)) < 1e-12
            seen.append((route, *by_factors))
        return seen

    seen, *others = run_world(3, body, world=ThreadWorld(3))
    assert all(other == seen for other in others)
    assert {("server", False), ("allreduce", True)} == set(seen[3:])


def test_all_ranks_change_at_the_same_step_and_keep_the_best():
    ranks = run(2, GRID)
    assert ranks[0][1] == ranks[1][1]
    seen, log = ranks[0][1], ranks[0][2]
    assert [trial.setting for trial in log.trials] == GRID
    assert seen[0] == GRID[0] and seen[1] == GRID[0] and seen[2] == GRID[1]
    assert seen[2 * PACE.trials :] == [log.best.setting] * 4


def test_without_servers_partition_segment_and_algorithm_are_tuned():
    grid = [Setting("allreduce", size, algorithm=name) for size in (1024, 4096) for name in ("", "ring", "")]
    tuned, plain = run(2, grid, servers=False), run(2, None, servers=False)
    assert torch.equal(tuned[0][0], plain[0][0])
    assert tuned[0][1] == tuned[1][1]


def test_links_are_told_and_partitions_are_cut_anew():
    world = ThreadWorld(2)

    def body(bps, rank, size):
        model = mlp()
        optimizer = make(bps, model, GRID)
        train(bps, rank, optimizer, model, 2 * PACE.trials)
        worker = bps.job.runtime.current().worker
        return worker.links, list(worker.retired), optimizer._distribution.reducer.partition_bytes

    links, retired, last = run_world(2, body, world=world)[0]
    assert (links[0].credit_bytes, links[0].segment_bytes) == (4096, 2048)
    pushed = {name.rpartition("/")[2]: count for name, count in world.pushed.items() if "/" in name}
    each = 2 * 2  # ranks, and rounds of a trial
    assert pushed["5"] == each, "a single partition"
    assert pushed["3"] in (2 * pushed["1"], 2 * pushed["1"] - each), "half the size, twice the number"
    assert last == 1024
    assert [name.rpartition("/")[2] for name in retired[1:]] == ["1", "3", "5"], "those that servers had"


def test_a_rank_that_joins_leaves_the_rest_tuned_alike():
    def body(bps, rank, size, grid):
        model = mlp()
        optimizer, kept = make(bps, model, grid, momentum=0.0), []
        for _ in range(2):
            train(bps, rank, optimizer, model, 3 + 4 * rank)
            bps.broadcast_parameters(model.state_dict(), root_rank=bps.join())
            train(bps, rank, optimizer, model, 1)
            kept.append(optimizer.tuned)
        return flat(model), kept

    tuned, plain = run_world(2, body, GRID), run_world(2, body, None)
    assert torch.equal(tuned[0][0], plain[0][0]) and torch.equal(tuned[1][0], plain[1][0])
    assert tuned[0][1] == tuned[1][1] and tuned[0][1][0] in GRID and tuned[0][1][1] == tuned[0][1][0]


def test_cleared_gradients_and_new_groups_while_tuning():
    def body(bps, rank, size, grid):
        model = mlp()
        extra = torch.nn.Parameter(torch.full((700,), 0.25, dtype=torch.float64))
        optimizer = make(bps, model, grid)
        train(bps, rank, optimizer, model, 4)
        loss_of(model, *batch(rank)).backward()  # thrown away by the next zero_grad
        optimizer.zero_grad()
        optimizer.add_param_group({"params": [extra]})
        for step in range(5):
            optimizer.zero_grad()
            (loss_of(model, *batch(rank + step)) + (extra * (rank + step)).sum()).backward()
            optimizer.step()
        return torch.cat([flat(model), extra.detach()])

    tuned, plain = run_world(2, body, GRID), run_world(2, body, None)
    assert torch.equal(tuned[0], plain[0]) and torch.equal(tuned[1], plain[1])


def test_a_saved_setting_is_used_from_the_second_step_on(tmp_path):
    path = tmp_path / "tuned.json"
    save(path, Setting("server", 8192, 1 << 16))

    def body(bps, rank, size):
        model, seen = mlp(), []
        optimizer = make(bps, model, tune=path if rank == 0 else str(tmp_path / "not on this host.json"))
        train(bps, rank, optimizer, model, 3, lambda _: seen.append(optimizer.tuned))
        return seen

    assert run_world(2, body) == [[load(path)] * 3] * 2


def test_the_setting_of_the_job_tunes_the_first_optimizer_only(tmp_path):
    path = tmp_path / "tuned.json"
    save(path, Setting("server", 8192))

    def body(bps, rank, size):
        configure(bps.job.runtime.current(), tune=str(path))
        first, second = mlp(), mlp(seed=1)
        tuned, plain = make(bps, first), make(bps, second)
        train(bps, rank, tuned, first, 2)
        train(bps, rank, plain, second, 2)
        return tuned.tuned, plain.tuned

    assert run_world(2, body) == [(Setting("server", 8192), None)] * 2


def test_a_rank_that_was_alone_is_tuned_with_those_that_come(tmp_path):
    """An elastic job may begin with one worker, whose optimizer stays."""
    path = tmp_path / "tuned.json"
    save(path, Setting("server", 8192))

    def body(bps, rank, size):
        model = mlp()
        if rank == 0:
            with bound(LocalWorker()) as alone:
                configure(alone, tune=str(path))
                optimizer = make(bps, model)
                train(bps, rank, optimizer, model, 1)
        configure(bps.job.runtime.current(), tune=str(path))
        if rank == 1:
            optimizer = make(bps, model)
        train(bps, rank, optimizer, model, 3)
        return optimizer.tuned

    assert run_world(2, body) == [Setting("server", 8192)] * 2


def test_what_is_found_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("byteps_like.torch.adapt.tuning.PACE", PACE)
    path = tmp_path / "tuned.json"

    def body(bps, rank, size):
        model = mlp()
        optimizer = make(bps, model)
        tuning = Tuning(optimizer._distribution.reducer, path, PACE)
        train(bps, rank, optimizer, model, STEPS)
        return tuning.setting, tuning.done

    assert run_world(2, body) == [(load(path), True)] * 2
    assert path.with_suffix(".png").exists()


def test_a_rank_that_fails_ends_the_tuning_of_all():
    world = ThreadWorld(2)

    def body(bps, rank, size):
        model = mlp()
        optimizer = make(bps, model, GRID)

        def fail(step):
            if rank == 1 and step == 3:
                world.fail(PeerLostError("rank 1 died"))

        with pytest.raises(PeerLostError, match="rank 1"):
            train(bps, rank, optimizer, model, STEPS, fail)

    run_world(2, body, world=world)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tune": ""}, "path"),
        ({"tune": "on", "op": "Adasum"}, "Adasum"),
    ],
)
def test_what_makes_no_sense_together_is_refused(options, words):
    def body(bps, rank, size):
        model = mlp()
        chosen = {**options, "op": bps.Adasum} if "op" in options else options
        with pytest.raises(InvalidArgumentError, match=words):
            bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **chosen)

    run_world(1, body)


def refused(bps, rank, path, words, **options):
    """By all ranks, in the first step, though none but rank 0 has the file; then all go on without tuning."""
    model = mlp()
    optimizer = make(bps, model, tune=path if rank == 0 else str(path.with_name("not on this host.json")), **options)
    with pytest.raises(ConfigError, match=words):
        train(bps, rank, optimizer, model, 1)
    train(bps, rank, optimizer, model, 3)
    optimizer.synchronize()
    same_everywhere(bps, flat(model))
    assert optimizer.tuned is None


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.parametrize("options", [{}, {"cross_barrier": True}, {"shard": "optimizer"}], ids=str)
def test_a_broken_file_is_named_on_all_ranks(options, servers, tmp_path):
    path = tmp_path / "broken, ü.json"
    path.write_text("{")
    run_world(2, lambda bps, rank, size: refused(bps, rank, path, r"broken, ü\.json", **options), servers=servers)


def test_a_directory_in_place_of_the_file_is_named_on_all_ranks(tmp_path):
    run_world(2, lambda bps, rank, size: refused(bps, rank, tmp_path, "is not a setting"))


def test_all_ranks_are_told_that_rank_0_has_no_search(monkeypatch, tmp_path):
    def missing(self):
        raise ConfigError("tuning needs Optuna")

    monkeypatch.setattr(Tuning, "_new_search", missing)
    run_world(2, lambda bps, rank, size: refused(bps, rank, tmp_path / "new.json", "needs Optuna"))


@pytest.mark.parametrize(
    ("saved", "options", "value"),
    [
        (Setting("server"), {}, "server"),
        (Setting("allreduce", algorithm="tree"), {}, "tree"),
        (Setting("server"), {"shard": "optimizer"}, "server"),
        (Setting("allreduce", algorithm="halving_doubling"), {"shard": "optimizer"}, "halving_doubling"),
    ],
)
def test_a_saved_setting_that_does_not_fit_is_named(saved, options, value, tmp_path):
    path = tmp_path / "tuned.json"
    save(path, saved)
    words = rf"tuned\.json.*'{value}'"
    run_world(2, lambda bps, rank, size: refused(bps, rank, path, words, **options), servers=False)
