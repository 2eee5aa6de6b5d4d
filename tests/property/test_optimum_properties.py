"""The optimum of BytePS agrees with OSDI'20's closed forms, and with a linear program for any hosts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from byteps_like.control.placing.optimum import Machine, card_time, shares
from byteps_like.errors import InvalidArgumentError

RATES = st.one_of(st.sampled_from([1.0, 0.25, 4.0]), st.floats(0.01, 100.0))
HOSTS = st.lists(st.builds(Machine, st.integers(0, 3), st.booleans(), RATES), min_size=1, max_size=8).filter(
    lambda hosts: any(host.workers for host in hosts) and any(host.serves for host in hosts)
)


def spread(n: int, k: int, rate: float = 1.0) -> list[Machine]:
    return [Machine(1, True, rate)] * n + [Machine(0, True, rate)] * k


@pytest.mark.parametrize("n", [2, 3, 4, 8, 32])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, 8, 32])
def test_closed_forms_of_the_paper(n: int, k: int) -> None:
    hosts, rate = spread(n, k, 2.5), 2.5
    found = shares(hosts)
    if k >= n:
        assert found == pytest.approx([0.0] * n + [1 / k] * k)
        assert card_time(hosts, found) == pytest.approx(1 / rate)
        return
    d = n * n + k * n - 2 * k
    assert found == pytest.approx([(n - k) / d] * n + [2 * (n - 1) / d] * k)
    assert card_time(hosts, found) == pytest.approx(2 * n * (n - 1) / (d * rate))


def test_no_spare_machine_is_the_traffic_of_an_all_reduce() -> None:
    hosts = spread(8, 0)
    assert card_time(hosts, shares(hosts)) == pytest.approx(2 * 7 / 8)


def least_time(hosts: list[Machine]) -> float:
    """The same by linear programming: variables are the shares and T."""
    everybody, count = sum(host.workers for host in hosts), len(hosts)
    rows = np.zeros((count, count + 1))
    for place, host in enumerate(hosts):
        rows[place, place] = (everybody - 2 * host.workers) / host.rate
    rows[:, count] = -1.0
    limits = [-host.workers / host.rate for host in hosts]
    sums = np.append(np.ones(count), 0.0)[None, :]
    bounds = [(0.0, 1.0 if host.serves else 0.0) for host in hosts] + [(0.0, None)]
    result = linprog(np.append(np.zeros(count), 1.0), rows, limits, sums, [1.0], bounds, method="highs")
    assert result.status == 0
    return float(result.fun)


@given(HOSTS)
def test_agrees_with_a_linear_program(hosts: list[Machine]) -> None:
    found = shares(hosts)
    assert sum(found) == pytest.approx(1.0)
    assert all(share >= 0.0 for share in found)
    assert not any(share for share, host in zip(found, hosts, strict=True) if not host.serves)
    assert card_time(hosts, found) == pytest.approx(least_time(hosts), rel=1e-6, abs=1e-9)


@given(HOSTS, st.data())
def test_a_faster_card_or_one_more_server_never_costs_time(hosts: list[Machine], data: st.DataObject) -> None:
    before = card_time(hosts, shares(hosts))
    place = data.draw(st.integers(0, len(hosts) - 1))
    host = hosts[place]
    faster = [*hosts[:place], Machine(host.workers, host.serves, host.rate * 2), *hosts[place + 1 :]]
    more = [*hosts, Machine(0, True, data.draw(RATES))]
    for better in (faster, more):
        assert card_time(better, shares(better)) <= before * (1 + 1e-9) + 1e-12


@given(HOSTS, st.floats(0.1, 10.0))
def test_only_ratios_of_rates_count(hosts: list[Machine], factor: float) -> None:
    scaled = [Machine(host.workers, host.serves, host.rate * factor) for host in hosts]
    assert shares(scaled) == pytest.approx(shares(hosts), abs=1e-6)


def test_a_slow_host_sums_less() -> None:
    hosts = [Machine(1, True, 1.0)] * 3 + [Machine(1, True, 0.25)]
    slow = shares(hosts)
    assert slow[3] == 0.0 and slow[:3] == pytest.approx([1 / 3] * 3)
    assert card_time(hosts, slow) == pytest.approx(4.0)
    assert card_time(hosts, [0.25] * 4) == pytest.approx(6.0)


def test_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no host has a server"):
        shares([Machine(1, False)])
    with pytest.raises(InvalidArgumentError, match="no host has a worker"):
        shares([Machine(0, True)])
    with pytest.raises(InvalidArgumentError, match="above 0"):
        shares([Machine(1, True, 0.0)])
