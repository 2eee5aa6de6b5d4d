"""Imports and includes go down, never up: both graphs are walked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the ground up. A part may use what is on its own floor and below it.
PYTHON_FLOORS: list[set[str]] = [
    {
        "errors",
        "config",
        "config_clock",
        "config_environment",
        "config_values",
        "dtypes",
        "limits",
        "log",
        "wire",
        "timeline",
        "_core",
    },
    # The seams: plain data types that all floors speak of.
    {"worker.api", "worker.current", "worker.keeping", "worker.standing", "worker.tables", "collectives.api"},
    {"compression", "cuda"},
    {"control"},
    {"server", "collectives", "store"},
    {"worker"},
    {"portable", "tuner"},
    {"torch.device"},
    {"torch.job"},
    {"torch.local"},
    {"torch.compression"},
    {"torch.calls"},
    {"torch.sparse"},
    {"torch.ops"},
    {"torch.gradients"},
    {"torch.reduction"},
    {"torch.adapt"},
    {"torch.optimizer"},
    {"torch.crossing"},
    {"torch.factors"},
    {"torch.sharded", "torch.stored", "torch.low_comm", "torch.batches"},
    {"torch.deferred"},
    {"torch.ddp"},
    {"torch.c10d"},
    {"torch.fsdp"},
    {"torch.pipeline"},
    {"torch.elastic"},
    {"torch"},
    {"launch", "planner"},
    {"bench"},
    {"cli", "__main__", "horovod", "torchft"},
]
# What a floor may reach above itself, and only inside functions: the choice of an implementation at run time.
LATE: set[tuple[str, str]] = {("worker", "portable")}

NATIVE_FLOORS: list[tuple[str, ...]] = [
    ("csrc/base",),
    ("csrc/wire", "csrc/kernels", "csrc/codec"),
    ("csrc/transport",),
    ("csrc/gpu",),
    ("csrc/engine",),
    ("compression",),
    ("collectives", "server"),
    ("csrc/sim",),
    ("byteps_like/_native",),
]


def _floor_of(module: str) -> int:
    parts = module.split(".")
    for length in (2, 1):
        name = ".".join(parts[:length])
        for number, floor in enumerate(PYTHON_FLOORS):
            if name in floor:
                return number
    raise AssertionError(f"byteps_like.{module} stands on no floor: add it to PYTHON_FLOORS")


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Modules below byteps_like that a file imports, and whether only inside a function."""
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("byteps_like."):
                yield name.removeprefix("byteps_like."), id(node) in late


def _python_files() -> list[Path]:
    return sorted(path for path in (ROOT / "byteps_like").rglob("*.py") if "v1" not in path.parts)


@pytest.mark.parametrize("path", _python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_python_imports_go_down(path: Path) -> None:
    own = ".".join(path.relative_to(ROOT / "byteps_like").with_suffix("").parts).removesuffix(".__init__")
    if own == "__init__":
        assert not list(_imports(ast.parse(path.read_text(encoding="utf-8"))))
        return
    for name, late in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        edge = (own.split(".")[0], name.split(".")[0])
        if name.startswith("__version__") or (late and edge in LATE):
            continue
        assert _floor_of(name) <= _floor_of(own), f"byteps_like.{own} imports byteps_like.{name}, which is above it"


def _native_floor(path: str) -> int:
    for number, floor in enumerate(NATIVE_FLOORS):
        if any(path.startswith(part + "/") for part in floor):
            return number
    raise AssertionError(f"{path} stands on no floor: add it to NATIVE_FLOORS")


def _native_files() -> list[Path]:
    folders = {part.split("/")[0] for floor in NATIVE_FLOORS for part in floor}
    found = [path for folder in sorted(folders) for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cc")]
    return sorted(found)


@pytest.mark.parametrize("path", _native_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_go_down(path: Path) -> None:
    own = str(path.relative_to(ROOT))
    for name in re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8")):
        assert _native_floor(name) <= _native_floor(own), f"{own} includes {name}, which is above it"
        siblings = {name.split("/")[0], own.split("/")[0]} == {"server", "collectives"}
        assert not siblings, f"{own} includes {name}: they are siblings"


@pytest.mark.parametrize("forbidden", ["torch/", "Python.h", "nanobind"])
def test_the_core_knows_no_torch_and_no_python(forbidden: str) -> None:
    for path in _native_files():
        if "_native" not in path.parts:
            includes = re.findall(r"#include [<\"]([^>\"]+)", path.read_text(encoding="utf-8"))
            assert not [name for name in includes if name.startswith(forbidden)], path


def test_the_core_reads_no_environment() -> None:
    for path in _native_files():
        assert "getenv" not in path.read_text(encoding="utf-8"), path
