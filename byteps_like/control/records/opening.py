"""Which place a setting means: a row per kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from byteps_like.control.records.records import Records
from byteps_like.control.records.sqlite import SqliteRecords
from byteps_like.errors import ConfigError


def open_records(state: str, job: str, *, wait: bool = False) -> Records:
    """The records of `job` at `state`: the address of an etcd, or a folder. With `wait`, blocks until whoever rules
    ends. Raises RefusedError if somebody does, ConfigError for an address or a folder that can't be one,
    SystemCallError for one that can't be used."""
    scheme, mark, _ = state.partition("://")
    if mark and scheme not in _ROWS:
        raise ConfigError(f"scheduler_state={state!r} is neither a folder nor one of {', '.join(_ROWS)}://...")
    return (_ROWS[scheme] if mark else _in_folder)(state, job, wait)


def _in_folder(state: str, job: str, wait: bool) -> Records:
    del job  # a folder is one job's
    return SqliteRecords(Path(state), wait=wait)


def _in_etcd(state: str, job: str, wait: bool) -> Records:
    from byteps_like.control.records.etcd.records import open_etcd  # its messages cost nothing to those without

    return open_etcd(state, job, wait=wait)


_ROWS: dict[str, Callable[[str, str, bool], Records]] = {"etcd": _in_etcd, "etcds": _in_etcd}
