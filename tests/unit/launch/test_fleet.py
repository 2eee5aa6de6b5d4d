"""Where `--servers auto` starts servers."""

import pytest
import typer

from byteps_like.cli.run import parse_servers
from byteps_like.launch.child import ChildPart
from byteps_like.launch.fleet import choose
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import LabPlacement


def test_beside_workers_and_on_spare_hosts() -> None:
    few = choose([1.0] * 5, 4)
    assert few.hosts == (0, 1, 2, 3, 4)
    assert "beside the workers on 4 hosts (16.7% of the sum each) and on spare 1 host (33.3% of the sum)" in few.why
    assert "1.12 times" in few.why
    many = choose([1.0] * 8, 4)
    assert many.hosts == (4, 5, 6, 7) and "servers on 4 hosts (25.0% of the sum each)" in many.why
    assert choose([1.0] * 4, 4).hosts == (0, 1, 2, 3)


def test_a_slow_host_gets_none() -> None:
    assert choose([1.0, 1.0, 1.0, 0.25], 4).hosts == (0, 1, 2)


def test_one_host() -> None:
    assert choose([1.0], 1, 4).hosts == (0,)
    assert choose([1.0], 1, 1).hosts == ()


def test_the_number_is_read() -> None:
    assert (parse_servers("auto"), parse_servers("0"), parse_servers("12")) == (None, 0, 12)
    with pytest.raises(typer.BadParameter, match="neither a number nor auto"):
        parse_servers("-1")


def test_processes_of_a_lab_are_told_where_they_are() -> None:
    lab = Lab(3, rate=["1gbit", "none", "250mbit"])
    place = LabPlacement(lab, 1, (0, 2))
    hosts = [
        place.host_of(part).index for part in (ChildPart("worker", 1), ChildPart("server", 0), ChildPart("server", 1))
    ]
    assert hosts == [1, 0, 2]
    _, slow = place(ChildPart("server", 1), ["true"], {})
    assert slow["BYTEPS_LIKE_LINK_GBPS"] == "0.25"
    assert "BYTEPS_LIKE_LINK_GBPS" not in place(ChildPart("worker", 1), ["true"], {})[1]
    assert (
        "BYTEPS_LIKE_LINK_GBPS" not in LabPlacement(lab, 1, (0, 2), tell_rates=False)(ChildPart("server", 1), [], {})[1]
    )
