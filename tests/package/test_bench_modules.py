"""Every module of bench/ can be imported, and those that are run answer `--help` by the name that starts them."""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bench import processes

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "bench").rglob("*.py"))
}
OPTIONAL = {"torch", "sklearn", "rich", "matplotlib"}
"""What an interpreter that runs the tests may be without."""


def shown(module: str) -> str:
    """What follows `python -m`: a package for its __main__."""
    return module.removesuffix(".__main__")


def usage(module: str) -> bool:
    """Whether the module's docstring shows how it is run."""
    docstring = ast.get_docstring(ast.parse(FILES[module].read_text())) or ""
    return re.search(rf"^    python -m {re.escape(shown(module))}( |$)", docstring, re.MULTILINE) is not None


RUN = [module for module in FILES if usage(module)]


def skip_without(error: ModuleNotFoundError) -> None:
    """Skips a module that needs what this interpreter doesn't have; raises `error` if it should have it."""
    name = (error.name or "").partition(".")[0]
    if name not in OPTIONAL:
        raise error
    pytest.skip(f"no {name} here")


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a benchmark puts into the path for itself is not there for other tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("module", [module for module in FILES if module not in RUN])
def test_what_benchmarks_share_and_start_can_be_imported(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        skip_without(error)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # one imports another
@pytest.mark.parametrize("module", RUN)
def test_a_benchmark_answers_help_by_its_name(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(FILES[module]), "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except ModuleNotFoundError as error:
            skip_without(error)
    assert ended.value.code == 0
    assert re.search(rf"usage: python -m {re.escape(shown(module))} ", capsys.readouterr().out, re.IGNORECASE)


def test_what_starts_by_itself_shows_how() -> None:
    """Workers and plans are started, or imported, by the benchmark that they stand beside."""
    beside = re.compile(r"_(worker|plan)$")
    alone = {name for name, path in FILES.items() if '__name__ == "__main__"' in path.read_text()}
    assert {name for name in alone if not beside.search(name)} == set(RUN)


def test_modules_that_are_started_by_name_exist() -> None:
    named = {name for path in FILES.values() for name in re.findall(r'module\(\s*"(bench[\w.]+)"', path.read_text())}
    assert named
    assert named <= FILES.keys(), named - FILES.keys()


@pytest.mark.processes
def test_a_module_starts_in_any_folder_and_environment(tmp_path: Path) -> None:
    clean = {"PATH": os.environ["PATH"]}
    command = processes.module("bench.internals.rdma", "--help")
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m bench.internals.rdma ")


def test_a_benchmark_runs_again_with_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    main = importlib.import_module("bench.internals.rdma")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["rdma.py", "--turns", "2"])
    words = processes.again("--rows")
    assert words[words.index("-m") :] == ["-m", "bench.internals.rdma", "--turns", "2", "--rows"]


@pytest.mark.parametrize("task", ["gpt", "cnn"])
def test_the_tasks_that_codecs_train_have_a_loss(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    training = importlib.import_module("bench.compression.training")
    monkeypatch.setattr(training.bps, "rank", lambda: 0)
    _, _, loss = getattr(training, task)(0)
    assert loss().isfinite()
