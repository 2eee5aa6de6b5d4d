"""Where a setting comes from, and what is refused."""

import dataclasses
import logging
from pathlib import Path

import pytest

from byteps_like.config import Config, config_table, environment_names
from byteps_like.errors import ConfigError


def test_argument_beats_environment_beats_default() -> None:
    environ = {"BYTEPS_LIKE_STALL_TIMEOUT": "7.5", "BYTEPS_LIKE_SHARDS": "3"}
    config = Config.from_env(environ, stall_timeout=2.0, rank=None)
    assert (config.stall_timeout, config.shards, config.rank, config.segment_bytes) == (2.0, 3, -1, 128 << 10)
    assert config.explicit == {"stall_timeout", "shards"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "99"}, {"scheduler": "10.0.0.1:99"}),
        ({"DMLC_PS_ROOT_URI": "fd00::1", "DMLC_PS_ROOT_PORT": "99"}, {"scheduler": "[fd00::1]:99"}),
        (
            {"DMLC_NUM_WORKER": "3", "DMLC_WORKER_ID": "2", "BYTEPS_LOCAL_SIZE": "4", "BYTEPS_LOCAL_RANK": "1"},
            {"world_size": 12, "rank": 9, "local_size": 4, "local_rank": 1},
        ),
        ({"DMLC_NUM_WORKER": "3", "DMLC_WORKER_ID": "2", "BYTEPS_GLOBAL_RANK": "1"}, {"world_size": 3, "rank": 1}),
        ({"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "3", "DMLC_WORKER_ID": "2"}, {"role": "server", "rank": -1}),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"},
            {"rank": 5, "world_size": 8, "local_rank": 1, "local_size": 4, "rendezvous_host": "a"},
        ),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, {"rank": 5, "local_rank": 1, "local_size": 0}),
        (
            {"WORLD_SIZE": "8", "NODE_RANK": "0", "LOCAL_RANK": "3"},
            {"rank": 3, "world_size": 8, "local_rank": 3, "local_size": 0},
        ),
        (
            {"WORLD_SIZE": "8", "NODE_RANK": "1", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
            {"rank": 7, "world_size": 8, "local_rank": 3, "local_size": 4},
        ),
        ({"WORLD_SIZE": "8", "NODE_RANK": "1", "LOCAL_RANK": "3"}, {"rank": -1, "world_size": 8}),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "WORLD_SIZE": "4"},
            {"rank": 3, "world_size": 4, "local_rank": 1, "local_size": 0},
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, {"world_size": 1, "rank": -1}),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "1",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                "RANK": "3",
                "WORLD_SIZE": "4",
            },
            {"rank": 3, "world_size": 4, "local_rank": -1, "local_size": 0},
        ),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "DMLC_ROLE": "server"},
            {"role": "server", "rank": -1, "world_size": 1},
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "BYTEPS_LIKE_RANK": "0", "BYTEPS_LIKE_SIZE": "2"},
            {"rank": 0, "world_size": 2},
        ),
        ({"BYTEPS_SCHEDULING_CREDIT": "4", "BYTEPS_PARTITION_BYTES": "1024"}, {"credit_bytes": 4096}),
        ({"BYTEPS_SCHEDULING_CREDIT": "0"}, {"credit_bytes": Config().credit_bytes}),
        (
            {"BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_LOG_LEVEL": "info"},
            {"force_distributed": True, "log_level": "INFO"},
        ),
        (
            {"BYTEPS_LIKE_PARTITION_BYTES": "2MiB", "BYTEPS_LIKE_JOB": ""},
            {"partition_bytes": 2 << 20, "job": "default"},
        ),
        ({"BYTEPS_LIKE_DOOR": "off", "DMLC_NUM_SERVER": "0"}, {"door": False, "num_servers": 0, "servers": 0}),
        ({"WORLD_SIZE": "2"}, {"servers": 1}),
        ({"BYTEPS_ENABLE_ASYNC": "0"}, {"enable_async": False}),
        ({"BYTEPS_ENABLE_ASYNC": "1"}, {"enable_async": True}),
    ],
)
def test_environment(environ: dict[str, str], expected: dict[str, object]) -> None:
    config = Config.from_env(environ)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({"BYTEPS_LIKE_PARTITON_BYTES": "1"}, {}, "did you mean 'BYTEPS_LIKE_PARTITION_BYTES'"),
        ({}, {"partion_bytes": 1}, "did you mean 'partition_bytes'"),
        ({"BYTEPS_LIKE_RANK": "two"}, {}, "BYTEPS_LIKE_RANK='two' is not an int"),
        ({"DMLC_NUM_WORKER": "x"}, {}, "DMLC_NUM_WORKER='x'"),
        ({"BYTEPS_LIKE_STALL_TIMEOUT": "nan"}, {}, "BYTEPS_LIKE_STALL_TIMEOUT"),
        ({"BYTEPS_LIKE_FORCE_DISTRIBUTED": "maybe"}, {}, "is not a bool"),
        ({"BYTEPS_ENABLE_ASYNC": "maybe"}, {}, "BYTEPS_ENABLE_ASYNC='maybe' is not a bool"),
        ({}, {"role": "sever"}, "did you mean 'server'"),
        ({}, {"rank": 2, "world_size": 2}, "rank=2 must be below world_size=2"),
        ({}, {"local_rank": 1, "local_size": 1}, "local_size=1"),
        ({}, {"scheduler": "nowhere"}, "scheduler='nowhere' is not host:port"),
        ({}, {"join_timeout": 0}, "join_timeout=0"),
        ({}, {"partition_bytes": 1}, "at least 64"),
    ],
)
def test_refused(environ: dict[str, str], arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_env(environ, **arguments)


def test_names_of_byteps_without_meaning_are_ignored_and_typos_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "byteps_like"):
        Config.from_env({"DMLC_ENABLE_RDMA": "1", "BYTEPS_NUMA_ON": "0", "BYTEPS_PARTITION_BYTE": "1"})
    texts = {record.levelname: record.getMessage() for record in caplog.records}
    assert "BYTEPS_NUMA_ON, DMLC_ENABLE_RDMA" in texts["DEBUG"]
    assert "did you mean 'BYTEPS_PARTITION_BYTES'" in texts["WARNING"]


def test_the_secret_is_not_shown() -> None:
    assert "hush" not in repr(Config(secret="hush"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls": "maybe"}, "tls='maybe' is none of off, on"),
        ({"tls": "on", "tls_cert": "c", "tls_ca": "a"}, "tls_cert, tls_ca without tls_key"),
        ({"tls_cert": "c", "tls_ca": "a", "tls_key": "k"}, "tls_cert, tls_key, tls_ca with tls='off'"),
        ({"tls_rdma": "on"}, "tls_rdma='on' is none of off, clear"),
    ],
)
def test_encryption_that_cannot_be_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_env({}, **settings)


def test_encryption_by_either_name() -> None:
    assert Config.from_env({"BYTEPS_TLS": "on"}).tls == Config.from_env({"BYTEPS_LIKE_TLS": "on"}).tls == "on"


def test_job_settings() -> None:
    config = Config.from_env({}, stall_warning=1.0)
    assert config.job_settings(explicit_only=True) == {"stall_warning": "1.0"}
    names = "partition_bytes segment_bytes stall_warning stall_timeout compression_check compression_monitor"
    names += " local_shares tls elastic min_workers max_workers failure_timeout"
    assert set(config.job_settings()) == set(names.split())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_workers": 5, "max_workers": 4}, "min_workers=5 is more than max_workers=4"),
        ({"min_workers": 5, "world_size": 4}, "min_workers=5 is more than world_size=4"),
        ({"max_workers": 2, "world_size": 4}, "world_size=4 is more than max_workers=2"),
        ({"min_workers": 0}, "min_workers=0 must be at least 1"),
    ],
)
def test_numbers_of_workers_that_contradict_each_other_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_env({}, elastic=True, **settings)


def test_numbers_of_workers_need_an_elastic_job() -> None:
    with pytest.raises(ConfigError, match="min_workers without elastic: set BYTEPS_LIKE_ELASTIC=1"):
        Config.from_env({"BYTEPS_LIKE_MIN_WORKERS": "1"})


def test_a_server_needs_no_size_of_the_world_to_know_how_few_may_go_on() -> None:
    assert Config.from_env({"BYTEPS_LIKE_ELASTIC": "1"}, role="server", min_workers=3).min_workers == 3


def test_every_setting_is_documented_once() -> None:
    table = config_table()
    for item in dataclasses.fields(Config):
        assert table.count(f"| `{item.name}` |") == (0 if item.name == "explicit" else 1)
    names = [name for item in dataclasses.fields(Config) for name in environment_names(item.name)]
    assert len(names) == len(set(names))


def test_the_page_in_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "config.md"
    if not page.exists():
        pytest.skip("docs/reference/config.md is not there; `make docs` writes it")
    assert config_table() in page.read_text()
