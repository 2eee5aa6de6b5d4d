"""`byteps-like doctor`, `config`, `version` and the table of commands."""

import json
import os
import subprocess
import sys

import pytest

from byteps_like.cli import doctor
from byteps_like.cli.config import effective
from byteps_like.cli.main import COMMANDS, app
from byteps_like.errors import ConfigError
from byteps_like.launch.hosts import cuda, encryption, host, network, rdma
from byteps_like.launch.hosts.host import Finding, Grade


def test_doctor_looks_at_everything_and_names_what_to_do():
    rows = doctor.collect([*host.ROWS, *cuda.ROWS, *network.ROWS, *rdma.ROWS])
    names = {row.name for row in rows}
    assert {"system", "Python", "cores", "native core", "memory", "/dev/shm", "open files", "OpenSSL", "CUDA"} <= names
    assert {"RDMA", "TCP congestion control", "lab", "torch"} <= names
    for row in rows:
        assert row.value, row
        assert (row.state is Grade.OK) == (not row.fix), row
    values = {row.name: row.value for row in rows}
    assert values["cores"].split()[0] == str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("setting", "state"), [("0", Grade.OK), ("1", Grade.WARN)])
def test_tcp_s_window_over_pauses(monkeypatch, setting, state):
    monkeypatch.setattr(network, "read_text", lambda *_: setting)
    row = network.pauses()
    assert (row.state, "tcp_slow_start_after_idle=0" in row.fix) == (state, state is Grade.WARN)


def test_a_check_that_fails_becomes_a_row():
    def broken():
        raise OSError("no such file")

    (row,) = doctor.collect([broken])
    assert (row.name, row.state) == ("broken", Grade.WARN)
    assert "no such file" in row.value


def test_doctor_s_exit_code_follows_the_worst_row(monkeypatch, capsys):
    monkeypatch.setattr(host, "ROWS", (lambda: Finding("all", Grade.FAIL, "bad", "fix it"),))
    monkeypatch.setattr(cuda, "ROWS", ())
    monkeypatch.setattr(network, "ROWS", ())
    monkeypatch.setattr(rdma, "ROWS", ())
    monkeypatch.setattr(encryption, "ROWS", ())
    with pytest.raises(SystemExit) as ended:
        app(["doctor", "--json"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out) == [{"name": "all", "state": "fail", "value": "bad", "fix": "fix it"}]


def test_config_says_where_a_value_came_from():
    rows = {row["name"]: row for row in effective({"BYTEPS_LIKE_SHARDS": "2", "DMLC_NUM_SERVER": "3"})}
    assert (rows["shards"]["value"], rows["shards"]["from"]) == (2, "BYTEPS_LIKE_SHARDS")
    assert (rows["num_servers"]["value"], rows["num_servers"]["from"]) == (3, "DMLC_NUM_SERVER")
    assert (rows["rank"]["from"], rows["rank"]["variable"]) == ("default", "BYTEPS_LIKE_RANK")
    secret = {row["name"]: row for row in effective({"BYTEPS_LIKE_SECRET": "hush-hush-hush-hush"})}["secret"]
    assert secret["value"] == "***"
    with pytest.raises(ConfigError, match="BYTEPS_LIKE_SHARDS"):
        effective({"BYTEPS_LIKE_SHARD": "2"})


@pytest.mark.processes
def test_every_command_has_help_and_none_imports_torch_or_grpc(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            app([name, "--help"])
        assert ended.value.code == 0
        assert "Usage" in capsys.readouterr().out
    script = "import sys; from byteps_like.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
    check = "assert not {'torch', 'grpc', 'numpy', 'zmq'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script + check], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)
