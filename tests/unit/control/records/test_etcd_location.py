"""Addresses of an etcd, as a user writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps_like.control.records.etcd.location import Location
from byteps_like.control.records.opening import open_records
from byteps_like.errors import ConfigError


def test_what_is_left_out_has_its_default() -> None:
    assert Location.parse("etcd://a") == Location(("a:2379",), "byteps_like")
    assert Location.parse("etcd://[::1]") == Location(("[::1]:2379",), "byteps_like")


def test_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("1234\n")
    address = f"etcds://me@a:1,b,[::1]:3/x/y/?ca=/ca&cert=/c&key=/k&password_file={tmp_path}/password"
    found = Location.parse(address)
    assert (found.endpoints, found.prefix, found.is_encrypted) == (("a:1", "b:2379", "[::1]:3"), "x/y", True)
    assert (found.user, found.read("password_file")) == ("me", b"1234\n")
    assert str(found) == "etcd at a:1, b:2379, [::1]:3"
    with pytest.raises(ConfigError, match="ca='/ca' of scheduler_state can't be read: No such file"):
        found.read("ca")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("etcd://", "is not host:port"),
        ("etcd://a:1,", "is not host:port"),
        ("etcd://a:70000", "is not host:port"),
        ("etcd://me:1234@a", "has a password in it"),
        ("etcd://me@a", "a user and a password_file come together"),
        ("etcd://a?password_file=/p", "a user and a password_file come together"),
        ("etcd://a?ca=/ca", "is not encrypted: say etcds://"),
        ("etcds://a?cert=/c", "cert and key come together"),
        ("etcd://a?timeout=3", "only paths of ca, cert, key, password_file"),
    ],
)
def test_what_makes_no_sense_is_named(address: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        Location.parse(address)
    assert "1234" not in str(raised.value)


def test_what_is_neither_a_folder_nor_an_etcd_is_refused() -> None:
    with pytest.raises(ConfigError, match="'http://a' is neither a folder nor one of etcd, etcds://"):
        open_records("http://a", "job")
