"""k="auto": the estimates behind it are unbiased, and in a simulation it is as good as the best number of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.consistency.scenarios import CALM, S1, S2, Scenario
from bench.consistency.simulated import Case, Simulation
from byteps_like.store.gradient_estimate import GradientEstimate, estimate_gradient
from byteps_like.store.ledger import Ledger
from byteps_like.store.policies.partial import KOfN, best_count
from byteps_like.store.policies.policy import Contribution, StoreRound

RANKS, VERSIONS, DIMENSIONS = 4, 600, 200


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(0, 40), st.sampled_from([np.float32, np.float64]))
def test_it_is_the_sum_over_pairs(seed: int, count: int, size: int, kind: type) -> None:
    """Σ_{i≠j} gᵢ·gⱼ / (m (m - 1)) and Σ_{i<j} |gᵢ - gⱼ|² / (m (m - 1)), which are unbiased term by term."""
    all_of_them = np.random.default_rng(seed).standard_normal((count, size)).astype(kind)
    products = all_of_them.astype(np.float64) @ all_of_them.astype(np.float64).T
    pairs = count * (count - 1)
    square = (products.sum() - np.trace(products)) / pairs
    apart = sum(products[i, i] + products[j, j] - 2 * products[i, j] for i in range(count) for j in range(i)) / pairs
    found = estimate_gradient(list(all_of_them))
    assert found.square == pytest.approx(square, abs=1e-9) and found.noise == pytest.approx(apart, abs=1e-9)


def test_they_are_unbiased() -> None:
    draw = np.random.default_rng(1)
    gradient = draw.standard_normal(10)
    found = [estimate_gradient(list(gradient + 2 * draw.standard_normal((3, 10)))) for _ in range(20_000)]
    for estimates, wanted in (
        ([one.square for one in found], gradient @ gradient),
        ([one.noise for one in found], 4.0 * 10),
    ):
        assert abs(np.mean(estimates) - wanted) < 4 * np.std(estimates) / len(found) ** 0.5


def looked_back(times: Sequence[Sequence[float]], *seen: GradientEstimate) -> Ledger:
    """A key of four sources after rounds in which contributions came at these times."""
    key = Ledger(KOfN("auto"), range(4))
    key.rounds.extend(StoreRound(0.0, list(one)) for one in times)
    key.rounds.append(StoreRound(0.0, [0.0] * 4))  # the open one, which doesn't count
    key.estimates.extend(seen)
    return key


@pytest.mark.parametrize(
    ("times", "seen", "best"),
    [
        ([[1, 2, 3, 9]], [GradientEstimate(1, 0)], 1),
        ([[1, 2, 3, 9]], [GradientEstimate(1, 0.9)], 2),  # 0.1 / 1, 0.55 / 2, 0.7 / 3, 0.775 / 9
        ([[1, 2, 2, 9]], [GradientEstimate(1, 0.9)], 3),
        ([[1, 2, 2, 2]], [GradientEstimate(1, 0.9)], 4),
        ([[1, 2, 3, 9]], [GradientEstimate(1, 1.8), GradientEstimate(1, 0)], 2),
        ([[1, 2, 3, 9], [9, 9]], [GradientEstimate(1, 0.9)], 3),  # 0.1 / 5, 0.55 / 5.5, 0.7 / 3, 0.775 / 9
        ([[1, 2, 3]], [GradientEstimate(1, 9)], 4),  # nothing that is known is above 0
        ([[1, 2, 3, 9]], [GradientEstimate(-1, 0)], 4),
        ([[1, 2, 3, 9]], [], 4),
        ([], [GradientEstimate(1, 0)], 4),
        ([[0, 0, 0, 0]], [GradientEstimate(1, 0.5)], 4),
    ],
)
def test_it_is_the_greatest_gain_per_second(times: list[list[float]], seen: list[GradientEstimate], best: int) -> None:
    assert best_count(looked_back(times, *seen)) == best


def test_it_looks_back_on_twenty_rounds_and_counts_late_ones_in_their_own() -> None:
    key = Ledger(KOfN("auto"), range(2))
    for number in range(30):
        key.push(Contribution(0, number, number), 10.0 * number)
        key.push(Contribution(1, number, number), 10.0 * number + 1)
        key.observe(GradientEstimate(-number, 1.0))
    assert [one.times for one in key.rounds][:-1] == [[9.0, 10.0]] * 20
    assert [one.square for one in key.estimates] == [-number for number in range(9, 29)]
    key.change(KOfN("auto"), 400.0)
    assert len(key.rounds) == 1 and not key.estimates
    key = Ledger(KOfN("auto"), range(3))
    key.observe(GradientEstimate(1.0, 0.0))
    for source in (0, 1, 2):
        key.push(Contribution(source, 0, 0), 1.0 + source)
    key.push(Contribution(0, 1, 1), 4.0)  # one is enough now
    key.push(Contribution(1, 1, 1), 5.5)  # late
    assert key.version == 2 and [one.times for one in key.rounds] == [[1.0, 2.0, 3.0], [1.0, 2.5], []]


@cache
def gain_per_second(scenario: Scenario, noise: float, k: int | str, seed: int) -> float:
    """By how much a loss would fall, where each contribution is a gradient of norm 1 and noise of that variance."""
    draw = np.random.default_rng(seed)
    gradient = np.full(DIMENSIONS, DIMENSIONS**-0.5)
    made: list[tuple[float, int]] = []

    def observe(now: float, pushes: Sequence[Contribution]) -> GradientEstimate | None:
        made.append((now, len(pushes)))
        spread = (noise / DIMENSIONS) ** 0.5
        drawn = [gradient + spread * draw.standard_normal(DIMENSIONS) for _ in pushes]
        return estimate_gradient(drawn) if len(pushes) > 1 and k == "auto" else None

    def compute(rank: int, step: int) -> float:
        return scenario.factor(seed, rank, step) * (1 + 0.02 * draw.random())

    case = Case(f"k_of_n:k={k}", (1,) * RANKS, compute, versions=VERSIONS, observe=observe)
    Simulation(case).run()
    assert [now for now, _ in made] == sorted(now for now, _ in made)
    return sum(1 - noise / count for _, count in made) / made[-1][0]


@pytest.mark.parametrize("noise", [0.3, 0.9, 1.5, 2.5])
@pytest.mark.parametrize("scenario", [S1, S2, CALM], ids=lambda one: one.name)
def test_it_is_as_good_as_the_best_of_all_numbers(scenario: Scenario, noise: float) -> None:
    seeds = range(3)
    rates = {
        k: sum(gain_per_second(scenario, noise, k, seed) for seed in seeds) / len(seeds)
        for k in (*range(1, RANKS + 1), "auto")
    }
    best = max(rate for k, rate in rates.items() if k != "auto")
    assert best > 0
    assert rates["auto"] >= 0.9 * best, rates
