"""The lab is what the measurements stand on: addresses, speed, counters, isolation and removal are checked here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byteps_like.errors import ConfigError, DeadlineError, SystemCallError
from byteps_like.launch.lab import network as lab_network
from byteps_like.launch.lab.hosts import Lab, sweep

pytestmark = pytest.mark.timeout(30)
MakeLab = Callable[..., Lab]

OWNER = """
import sys, time
from byteps_like.launch.lab.hosts import Lab
lab = Lab(2).open()
child = lab.hosts[0].popen(["sleep", "60"])
print(lab.name, child.pid, lab._watchdog.pid, flush=True)
time.sleep(60)
"""


def test_each_host_has_its_address_and_reaches_the_others(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    for host in lab.hosts:
        assert host.address in host.run(["ip", "-4", "-brief", "addr", "show", "dev", "eth0"])
        assert "127.0.0.1" in host.run(["ip", "-4", "-brief", "addr", "show", "dev", "lo"])
    assert len({host.address for host in lab.hosts}) == 3
    for peer in lab.hosts[1:]:
        lab.hosts[0].run([sys.executable, "-c", CONNECT, peer.address], timeout=5)


CONNECT = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 2)
except ConnectionRefusedError:  # the host is there and says that nobody listens
    pass
"""


@pytest.mark.parametrize("megabits", [100, 1000])
def test_a_link_carries_its_rate_within_5_percent(make_lab: MakeLab, megabits: int) -> None:
    _check_rate(make_lab(2, rate=f"{megabits}mbit"), 0, 1, megabits)


def test_each_host_can_have_its_own_rate_and_the_slower_end_decides(make_lab: MakeLab) -> None:
    lab = make_lab(3, rate=["none", "400mbit", "100mbit"])
    _check_rate(lab, 0, 1, 400)  # shaped where it is received
    _check_rate(lab, 1, 0, 400)  # shaped where it is sent
    _check_rate(lab, 1, 2, 100)


def _check_rate(lab: Lab, sender: int, receiver: int, megabits: int) -> None:
    # Of 1514 bytes on the wire 1448 are payload, at a full frame with TCP time stamps. A machine that is busy with
    # other things can starve the receiver for a while, so one good measurement of three is enough.
    expected = pytest.approx(megabits * 1e6 / 8 * 1448 / 1514, rel=0.05)
    measured: list[float] = []
    while not any(rate == expected for rate in measured):
        assert len(measured) < 3, f"{measured} B/s from host {sender} to {receiver}, not {expected}"
        measured.append(lab.goodput(sender, receiver, 0.4))


@pytest.mark.parametrize("rate", ["20mbit", "100mbit", "400mbit"])
def test_what_a_host_hands_over_is_not_cut_into_frames_by_its_bucket(make_lab: MakeLab, rate: str) -> None:
    lab = make_lab(2, rate=rate)
    lab.goodput(0, 1, 0.1)
    sent = lab.hosts[0].counters()
    assert sent.tx_bytes > 4 * 1514 * sent.tx_packets
    host, port = _qdisc(lab.hosts[0].namespace, "eth0"), _qdisc(lab_network.bridge_namespace(lab.name), "h1")
    assert (host["kind"], port["kind"]) == ("tbf", "tbf")
    assert host["drops"] == 0, "a host that drops what TCP has just given it"


def test_a_port_has_the_queue_it_is_given_and_a_card_a_thousand_frames(make_lab: MakeLab) -> None:
    for options, port_seconds in (({}, 0.010), ({"latency": 0.02}, 0.020), ({"queue": 50_000}, 0.004)):
        lab = make_lab(1, rate="100mbit", **options)
        port, host = _qdisc(lab_network.bridge_namespace(lab.name), "h0"), _qdisc(lab.hosts[0].namespace, "eth0")
        assert port["options"]["lat"] == pytest.approx(1e6 * port_seconds, rel=0.01)
        assert host["options"]["lat"] == pytest.approx(1e6 * 1000 * 1514 / 12.5e6, rel=0.01)


def _qdisc(namespace: str, interface: str) -> dict[str, Any]:
    shown = ["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", interface]
    (root,) = json.loads(subprocess.run(shown, capture_output=True, text=True, check=True).stdout)
    return dict(root)


def test_counters_count_both_ways(lab: Lab) -> None:
    before = [host.counters() for host in lab.hosts]
    lab.goodput(0, 1, 0.1)
    sender, receiver = (host.counters() - start for host, start in zip(lab.hosts, before, strict=True))
    assert sender.tx_bytes > 1_000_000
    assert receiver.rx_bytes >= sender.tx_bytes * 0.99
    assert sender.rx_bytes < sender.tx_bytes / 20
    assert sender.rx_packets > 0


def test_hosts_see_only_their_own_network(lab: Lab) -> None:
    outside = set(Path("/sys/class/net").iterdir())
    assert set(lab.hosts[0].run(["ls", "/sys/class/net"]).split()) == {"lo", "eth0"}
    assert set(Path("/sys/class/net").iterdir()) == outside, "the machine's own network was touched"
    with pytest.raises(SystemCallError, match="unreachable"):
        lab.hosts[0].run([sys.executable, "-c", CONNECT, "192.0.2.1"], timeout=5)


def test_run_gives_output_and_says_what_went_wrong(lab: Lab) -> None:
    host = lab.hosts[1]
    assert host.run(["sh", "-c", "echo $GREETING"], env={"GREETING": "hello"}) == "hello\n"
    with pytest.raises(SystemCallError, match=r"host 1 \(10.77.0.2\) ended with 3.*\nbroken"):
        host.run(["sh", "-c", "echo broken >&2; exit 3"])
    with pytest.raises(DeadlineError, match="took more than"):
        host.run(["sleep", "20"], timeout=0.1)


def test_two_labs_at_once_do_not_meet(make_lab: MakeLab) -> None:
    first, second = make_lab(2), make_lab(2)
    assert first.hosts[0].address == second.hosts[0].address
    start = second.hosts[0].counters()
    first.goodput(0, 1, 0.1)
    assert (second.hosts[0].counters() - start).rx_bytes == 0
    first.close()
    assert second.hosts[0].run(["echo", "alive"]) == "alive\n"


def test_close_ends_processes_and_removes_everything(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    deaf = lab.hosts[0].popen(["sh", "-c", "trap '' TERM; echo deaf; sleep 20; sleep 20"], stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == b"deaf\n"
    lab.close(patience=0.1)
    lab.close()
    assert deaf.poll() == -signal.SIGKILL
    assert lab.name not in lab_network.prefixes()


@pytest.fixture
def owner(lab: Lab) -> subprocess.Popen[str]:
    """Another process with a lab of its own; its first line names the lab, a process in it and its watchdog."""
    return subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT)


ROOT = Path(__file__).parents[2]


def test_nothing_stays_when_the_owner_is_killed(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    name, child, _ = owner.stdout.readline().split()
    assert name in lab_network.prefixes()
    owner.kill()
    owner.wait()
    _eventually(lambda: name not in lab_network.prefixes())
    _eventually(lambda: not _alive(int(child)))


def test_the_next_lab_sweeps_what_owner_and_watchdog_left(owner: subprocess.Popen[str], lab: Lab) -> None:
    assert owner.stdout is not None
    name, child, watchdog = owner.stdout.readline().split()
    os.kill(int(watchdog), signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert name in lab_network.prefixes(), "the watchdog was dead: nobody can have removed it"
    assert name in sweep()
    assert not _alive(int(child))
    assert name not in lab_network.prefixes()
    assert lab.name in lab_network.prefixes(), "a lab in use must stay"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.01)


@pytest.mark.parametrize("text", ["fast", "1gb", "-1gbit", "0gbit", ""])
def test_a_rate_that_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not valid; write it as"):
        Lab(2, rate=text)


def test_one_rate_per_host_or_one_for_all() -> None:
    with pytest.raises(ConfigError, match="3 hosts but 2 rates"):
        Lab(3, rate=["1gbit", "1gbit"])


def test_without_root_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemCallError, match="needs root"):
        Lab(2).open()
