"""What the processes of a job import before they can begin: all of it is waited for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from byteps_like.launch.service import scheduler_command, server_command

ARRAYS = {"numpy", "torch", "matplotlib"}
OPTIONS = {"typer", "click", "rich", "pydantic"}


@pytest.mark.processes
@pytest.mark.parametrize("module", ["cli.main", "launch.run"])
def test_the_launcher_imports_no_library_of_arrays(module: str) -> None:
    program = f"import sys, byteps_like.{module}; print(*({ARRAYS!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.processes
def test_workers_import_no_library_of_options_or_tables() -> None:
    pytest.importorskip("torch")
    program = "import sys, torch; own = set(sys.modules); import byteps_like.torch; print(*sys.modules.keys() - own)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not set(done.stdout.split()) & (OPTIONS | {"matplotlib"})


@pytest.mark.processes
@pytest.mark.parametrize("command", [scheduler_command(1, 2), server_command()], ids=["scheduler", "server"])
def test_services_import_no_library_of_arrays_or_options(command: list[str]) -> None:
    traced = [command[0], "-X", "importtime", *command[1:]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    environment["BYTEPS_LIKE_SCHEDULER"] = "127.0.0.1:0"  # but no secret
    done = subprocess.run(traced, env=environment, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.splitlines()
    said = [line for line in lines if not line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert done.returncode == 2
    assert len(said) == 1 and said[0].startswith("byteps-like: ConfigError: ")  # after all imports
    assert "grpc.aio" in imported
    assert not imported & (ARRAYS | OPTIONS)
