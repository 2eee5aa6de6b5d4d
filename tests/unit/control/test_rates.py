"""Cards that turn out slower, or faster again, change the weights; nothing else does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from byteps_like.config import Config
from byteps_like.control.hosts.card import CardMeter, open_meter
from byteps_like.control.placing.rates import SETTLE, CardRates, CardReport
from byteps_like.control.types import View
from tests.unit.control.placing.test_weights import world

HOSTS = "abcdwxyz"


class Job:
    """Reports once a second from all hosts of four workers and four spare servers."""

    def __init__(self, made: View | None = None) -> None:
        self.rates = CardRates(made or world("abcd", "wxyz"), 0.0)
        self.now = SETTLE

    def report(self, gbps: dict[str, float], duty: dict[str, float], usual: tuple[float, float] = (1.0, 0.5)) -> bool:
        self.now += 1.0
        reports = [CardReport(gbps.get(id, usual[0]), duty.get(id, usual[1]), self.now) for id in HOSTS]
        return any([self.rates.observe(id, report) for id, report in zip(HOSTS, reports, strict=True)])


def test_a_slow_server_is_found_and_its_recovery_too() -> None:
    job = Job()
    assert not job.report({}, {})
    assert job.report({"w": 0.25}, {"w": 0.95}, usual=(1.0, 0.25))
    assert job.rates.rates["w"] == 0.25 and job.rates.rates["x"] == 1.0
    assert not job.report({"w": 0.25}, {"w": 0.95}, usual=(1.0, 0.25))  # it looks back to before the change
    job.now += SETTLE
    assert not job.report({"w": 0.25}, {})
    assert job.report({"w": 0.9}, {"w": 0.2})
    assert job.rates.rates["w"] == 0.9


def test_a_slow_host_among_cards_that_say_too_much_of_themselves() -> None:
    job = Job(world("abcd", "wxyz", dict.fromkeys(HOSTS, 10.0)))
    assert job.report({"w": 0.25}, {"w": 0.95}, usual=(1.0, 0.25))
    assert job.rates.rates["x"] / job.rates.rates["w"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("gbps", "duty", "usual"),
    [
        ({}, {}, (0.3, 0.9)),  # all are slower than thought, alike: a network that is shared
        ({"w": 0.25}, {"w": 0.5}, (1.0, 0.5)),  # it carries less, but nobody waits for it
        ({"w": 0.9}, {"w": 0.95}, (1.0, 0.25)),  # hardly slower
        ({"w": 0.25}, {"w": 0.1}, (1.0, 0.02)),  # hardly any traffic: it does not matter
        ({}, {}, (25.0, 0.5)),  # nobody had said how fast they are
        ({"w": 5.0}, {"w": 0.2}, (25.0, 0.5)),  # nor that of the one with little to do
    ],
)
def test_no_reason_to_move(gbps: dict[str, float], duty: dict[str, float], usual: tuple[float, float]) -> None:
    job = Job()
    assert not any(job.report(gbps, duty, usual) for _ in range(8))


def test_it_waits_until_all_have_reported() -> None:
    rates = CardRates(world("abcd", "wxyz"), 0.0)
    assert not any(rates.observe(id, CardReport(0.25, 1.0, SETTLE + 1.0)) for id in HOSTS[:-1])


@pytest.mark.parametrize(("workers", "found"), [(4, False), (996, True)])
def test_reports_of_many_members_count_for_longer(workers: int, found: bool) -> None:
    rates = CardRates(world("abcd" * (workers // 4), "wxyz"), 0.0)
    reports = [CardReport(0.25, 0.95, SETTLE), *(CardReport(1.0, 0.25, SETTLE + 1.5 * i) for i in range(1, 8))]
    assert [rates.observe(id, report) for id, report in zip("wxyzabcd", reports, strict=True)][-1] is found


def test_the_meter_counts_what_a_card_carries(tmp_path: Path) -> None:
    folder = tmp_path / "eth9" / "statistics"
    folder.mkdir(parents=True)
    files = [os.open(folder / f"{way}_bytes", os.O_RDWR | os.O_CREAT) for way in ("rx", "tx")]
    for file in files:
        os.pwrite(file, b"00000000\n", 0)
    meter = CardMeter("eth9", tmp_path)
    assert meter.report() == {}
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < 0.5:
        time.sleep(0.005)
        sent = int((time.monotonic() - began) * 1e6)
        for factor, file in enumerate(files, 1):
            os.pwrite(file, b"%08d\n" % (factor * sent), 0)
    report = meter.report()
    meter.close()
    meter.close()
    for file in files:
        os.close(file)
    assert report["card_gbps"] == pytest.approx(8e-3, rel=0.6)
    assert 0.0 < report["card_duty"] <= 1.0


def test_no_meter_where_there_is_no_card() -> None:
    assert open_meter(Config(), "127.0.0.1") is None
    assert open_meter(Config(interface="no-such-card"), "") is None
