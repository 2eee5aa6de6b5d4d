"""Records on the disk, beside what any place does: who may write, and where not to keep them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from byteps_like.control.records import sqlite
from byteps_like.control.records.sqlite import SqliteRecords
from byteps_like.errors import ConfigError, RefusedError, SystemCallError


def test_who_has_lost_the_rule_stores_nothing(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path)
    with sqlite3.connect(tmp_path / "scheduler.sqlite") as other:
        other.execute("UPDATE rule SET term = 7")
    with pytest.raises(RefusedError, match="another scheduler rules by now: term 7, this one's was 1"):
        records.commit({"a": b"1"})
    assert records.load() == {}


def _not_a_folder(folder: Path) -> None:
    folder.rmdir()
    folder.write_text("")


def _no_database(folder: Path) -> None:
    (folder / "scheduler.sqlite").write_bytes(b"not a database" * 1000)


@pytest.mark.parametrize("spoil", [_not_a_folder, _no_database])
def test_a_folder_that_cant_be_used_is_named(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path)
    with pytest.raises(SystemCallError, match=f"can't keep the scheduler's state in {tmp_path}"):
        SqliteRecords(tmp_path)


def test_another_releases_layout_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "scheduler.sqlite") as other:
        other.execute("PRAGMA user_version=9")
    with pytest.raises(RefusedError, match="its layout is 9"):
        SqliteRecords(tmp_path)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype=kind)]
    monkeypatch.setattr(sqlite.psutil, "disk_partitions", lambda all: mounts)
    with pytest.raises(ConfigError, match=f"network file system \\({kind}\\)"):
        SqliteRecords(tmp_path / "state")


def test_a_full_disk_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path)
    records.commit({"a": b"1"})
    pages = records._database.execute("PRAGMA page_count").fetchone()[0]
    records._database.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(SystemCallError, match="full"):
        records.commit({"a": b"2", "b": os.urandom(1 << 20)})
    records._database.execute("PRAGMA max_page_count=1000000")
    assert records.load() == {"a": b"1"}
