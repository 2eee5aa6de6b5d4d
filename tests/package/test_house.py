"""The rules of the house, beside those of layers: each failure says what to do about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "byteps_like"

MOST_CHAPTERS = 20
"""Files in a room; a header and its source are one chapter."""
LONGEST_FUNCTION = 80
NAMELESS = {"utils", "util", "common", "manager", "helper", "helpers", "misc"}
OPTIONAL = {"byteps_like._core", "torch", "matplotlib", "cupy", "optuna", "grpc", "zmq", "prometheus_client"}
"""What a process may be without, or takes long to import and not every process needs."""
DISTANT_FRIENDS = {"GpuMemory"}
"""Classes that may see the inside of one in another file: GpuMemory, which counts its bytes in its Gpu."""
STARTS_FAST = {"byteps_like.cli"}
"""Where imports wait until they are needed, so that `byteps-like --help` and completion answer at once."""


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _modules() -> dict[str, Path]:
    return {_module(path): path for path in PACKAGE.rglob("*.py") if "v1" not in path.parts}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _type_checking(tree: ast.Module) -> set[int]:
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {id(node) for block in blocks for node in ast.walk(block)}


def _targets(node: ast.AST) -> list[str]:
    """Modules, ours by their full names, that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or not node.module:
        return []
    inner = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in _modules() or name in OPTIONAL else node.module for name in inner]


@cache
def _imports(module: str) -> list[tuple[str, bool, int]]:
    """What a module imports; whether within a function; in which line."""
    tree = _tree(_modules()[module])
    skipped = _type_checking(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {id(node) for function in functions for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        if id(node) not in skipped:
            found += [(name, id(node) in late, getattr(node, "lineno", 0)) for name in _targets(node)]
    return found


def test_no_import_leads_back_to_where_it_began():
    graph = {name: {target for target, *_ in _imports(name) if target in _modules()} - {name} for name in _modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"{circle}: move what they share below both, or hand it over as an argument")


@cache
def _is_optional(name: str) -> bool:
    """Whether a process may be without what `name` imports at once."""
    if any(name == one or name.startswith(one + ".") for one in OPTIONAL):
        return True
    return name in _modules() and any(_is_optional(target) for target, late, _ in _imports(name) if not late)


@pytest.mark.parametrize("module", sorted(_modules()))
def test_imports_stand_at_the_top(module: str):
    if any(module == room or module.startswith(room + ".") for room in STARTS_FAST):
        return
    for target, late, line in _imports(module):
        if late and target.startswith("byteps_like"):
            assert _is_optional(target), (
                f"{_modules()[module].relative_to(ROOT)}:{line} imports {target} within a function, though nobody is"
                " without it: move the import to the top of the file"
            )


def _rooms() -> Iterator[tuple[str, set[str]]]:
    for top in ("byteps_like", "csrc", "collectives", "compression", "server", "tests/unit", "tests/native"):
        for folder in [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]:
            if not {"v1", "__pycache__"} & set(folder.parts):
                sources = [path for path in folder.iterdir() if path.suffix in (".py", ".cc", ".h", ".cu", ".cuh")]
                yield str(folder.relative_to(ROOT)), {path.stem for path in sources} - {"__init__"}


@pytest.mark.parametrize(("room", "chapters"), [pytest.param(*item, id=item[0]) for item in _rooms()])
def test_a_room_holds_one_subject(room: str, chapters: set[str]):
    assert len(chapters) <= MOST_CHAPTERS, (
        f"{room} has {len(chapters)} files: it holds two subjects; make a room of one of them"
    )
    assert not chapters & NAMELESS, f"{room}: {chapters & NAMELESS} says nothing: name the file after what is in it"


@pytest.mark.parametrize("init", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: _module(path))
def test_a_room_says_what_lives_in_it(init: Path):
    if "v1" not in init.parts:
        assert ast.get_docstring(_tree(init)), (
            f"{init.relative_to(ROOT)} needs a docstring: what lives there, what comes in and out, who may import it"
        )


def _functions() -> Iterator[tuple[str, int]]:
    for top in ("byteps_like", "bench", "examples", "scripts", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            if "v1" not in path.parts:
                for node in ast.walk(_tree(path)):
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                        length = (node.end_lineno or node.lineno) - node.lineno + 1
                        yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", length


def test_functions_can_be_seen_at_once():
    long = [f"{where}: {length} lines" for where, length in _functions() if length > LONGEST_FUNCTION]
    assert not long, "\n".join([f"more than {LONGEST_FUNCTION} lines; name a part of each and move it out:", *long])


def test_one_class_has_a_name():
    homes: dict[str, list[str]] = {}
    for module, path in sorted(_modules().items()):
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    shared = [f"{name}: {', '.join(modules)}" for name, modules in homes.items() if len(modules) > 1]
    assert not shared, "\n".join(["classes of one name; say in each name which of them it is:", *shared])


def test_friends_live_in_one_file():
    for top in ("csrc", "collectives", "compression", "server"):
        for path in (ROOT / top).rglob("*.h"):
            text = path.read_text(encoding="utf-8")
            for friend in re.findall(r"friend (?:class|struct) (\w+);", text):
                assert friend in DISTANT_FRIENDS or re.search(
                    rf"^\s*(class|struct) {friend}\b[^;]*\{{", text, re.MULTILINE
                ), (
                    f"{path.relative_to(ROOT)} shows its inside to {friend}, which is elsewhere: hand {friend} what it"
                    " needs, as EngineContext and PartSink do in csrc/engine"
                )
