"""How fast the hosts' network cards are, by what they were seen to carry. Pure.

What a card carried in its best moments is never more than it can. Whether it could have carried more only shows where
it was what everybody waited for: then it carried that much most of the time, while the cards of others, which had to
wait for it, stood still at times. So a rate is lowered where a card has carried less than it was thought to, though it
was busy and others were not, and one that was lowered is raised again when the card has carried more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteps_like.control.members.seats import heartbeat_interval
from byteps_like.control.placing.optimum import card_time, shares
from byteps_like.control.placing.weights import hosts_of
from byteps_like.control.types import View

FRESH = 3.0
"""Seconds for which a report counts; more where members are so many that they report less often."""
SETTLE = 5.0
"""Seconds after a change in which reports, which look back, say nothing of it yet."""
WORTH = 0.10
"""By how much sooner the busiest card must be done for tensors to be moved."""
_RAISED, _LOWERED = 1.25, 0.8
_BUSY, _IDLE, _QUIET, _LEAST = 0.9, 0.7, 0.05, 0.2


@dataclass(frozen=True)
class CardReport:
    """What a host has seen of its card in the last seconds."""

    gbps: float
    """The most it carried, in the direction in which that is less."""
    duty: float
    """The share of the time in which it carried nearly that much."""
    time: float


class CardRates:
    """The cards of one view. `now` is any monotonic time in seconds."""

    def __init__(self, view: View, now: float) -> None:
        self._view = view
        self._rates = {id: host.rate for id, host in hosts_of(view).items()}
        self._split = self._optimum(self._rates)
        self._reports: dict[str, CardReport] = {}
        self._fresh = max(FRESH, 3 * heartbeat_interval(0.0, len(view.workers) + len(view.servers)))
        self._not_before = now + SETTLE

    @property
    def rates(self) -> Mapping[str, float]:
        """Gb/s by host id, as they are thought to be; units of the usual one where nothing is known."""
        return self._rates

    def observe(self, host_id: str, report: CardReport) -> bool:
        """Whether tensors should be placed anew by `rates`, which have changed by more than a little."""
        self._reports[host_id] = report
        fresh = {id: found for id, found in self._reports.items() if report.time - found.time <= self._fresh}
        if report.time < self._not_before or len(fresh) < len(self._rates):
            return False
        rates = self._believed(fresh)
        split, hosts = self._optimum(rates), list(hosts_of(self._view, rates).values())
        if rates == self._rates or card_time(hosts, split) > (1 - WORTH) * card_time(hosts, self._split):
            return False
        self._rates, self._split, self._not_before = rates, split, report.time + SETTLE
        self._reports.clear()
        return True

    def _believed(self, reports: Mapping[str, CardReport]) -> dict[str, float]:
        """The rates by these reports."""
        rates = dict(self._rates)
        scale = max(report.gbps for report in reports.values()) / max(rates.values())
        if scale > 1.0:  # all may be as fast as the one that was seen to be
            rates = {id: rate * scale for id, rate in rates.items()}
        most = max(report.duty for report in reports.values())
        least = min(report.duty for report in reports.values())
        slow = [
            id for id, report in reports.items()
            if report.duty >= _BUSY * most and report.gbps < _LOWERED * rates[id]
        ]  # fmt: skip
        if slow and most >= _LEAST and least <= _IDLE * most:
            rates |= {id: report.gbps for id, report in reports.items() if report.duty >= _QUIET * most}
        usual = max(rates.values())
        rates |= {
            id: min(report.gbps, usual)
            for id, report in reports.items()
            if rates[id] < _LOWERED * usual and report.gbps > _RAISED * rates[id]
        }
        return rates

    def _optimum(self, rates: Mapping[str, float]) -> list[float]:
        return shares(list(hosts_of(self._view, rates).values()))
