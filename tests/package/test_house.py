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
OPTIONAL = {"byteps_like._core", "torch", "torchft", "matplotlib", "cupy", "optuna", "grpc", "zmq", "prometheus_client"}
"""What a process may be without, or takes long to import and not every process needs."""
DISTANT_FRIENDS = {"GpuMemory"}
"""Classes that may see the inside of one in another file: GpuMemory, which counts its bytes in its Gpu."""
STARTS_FAST = {
    "byteps_like.cli",
    "byteps_like.control.placing.placement",
    "byteps_like.launch.run",
    "byteps_like.wire.crc32c",
}
"""Where imports wait until they are needed, so that `byteps-like --help` and completion answer at once, and no job's
workers wait until its launcher and scheduler have imported NumPy."""


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
    for top in ("byteps_like", "csrc", "collectives", "compression", "server", "bench", "tests"):
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


def test_no_two_files_of_tests_have_one_name():
    paths: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        paths.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    twice = [found for found in paths.values() if len(found) > 1]
    assert not twice, f"pytest imports a file of tests by its name alone, and refuses a second one: rename {twice}"


def _package_rooms() -> list[Path]:
    """Folders with Python in them that are imported from."""
    folders = {path.parent for top in (PACKAGE, ROOT / "bench") for path in top.rglob("*.py")}
    return sorted(folder for folder in folders if "v1" not in folder.parts)


@pytest.mark.parametrize("room", _package_rooms(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_says_what_lives_in_it(room: Path):
    init = room / "__init__.py"
    assert init.exists() and ast.get_docstring(_tree(init)), (
        f"{init.relative_to(ROOT)} needs a docstring: what lives there, what comes in and out, who may import it"
    )


OPEN_ROOMS = {"byteps_like", "byteps_like.torch"}
"""Where users import modules by their names."""


def _room_of(module: str) -> str:
    return module if _modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def _is_run(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


@cache
def _private() -> dict[str, set[str]]:
    """Room -> its modules that nobody outside of it imports or runs."""
    inside: dict[str, set[str]] = {}
    for module, path in _modules().items():
        if path.name != "__init__.py" and not _is_run(path):
            inside.setdefault(_room_of(module), set()).add(module)
    for module in _modules():
        for target, *_ in _imports(module):
            if target in _modules() and _room_of(target) != _room_of(module):
                inside.get(_room_of(target), set()).discard(target)
    return {room: {name.rpartition(".")[2] for name in names} for room, names in inside.items() if names}


@pytest.mark.parametrize("room", sorted({_room_of(module) for module in _modules()} - OPEN_ROOMS))
def test_a_room_says_which_of_its_modules_are_private(room: str):
    path = _modules()[room]
    said = re.search(r"^Private: (.*?)\.$", ast.get_docstring(_tree(path)) or "", flags=re.MULTILINE | re.DOTALL)
    listed = set(re.split(r",\s+", said[1])) if said else set()
    private = _private().get(room, set())
    assert listed == private, (
        f"{path.relative_to(ROOT)}: {sorted(listed - private)} are used outside of the room, or gone: import something"
        f" else there, or take them off its line 'Private: '; {sorted(private - listed)} are used inside only: add them"
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


OUTLIVE_A_VIEW = ("control", "worker", "portable", "server", "collectives", "tuner", "torch")
"""Rooms whose objects may be there before a view is in force, and after."""
OF_A_VIEW = re.compile(r"^_?(world_size|size|ranks?|workers)$")
"""What may be another in the next view."""
KNOWS_THE_VIEW = {"worker", "base", "scope", "standing", "view", "world"}
"""Whom to ask."""
REMEMBERS = {
    "a lane, and what is made for one: in another view there is another lane": {
        "NativeGroup", "NativeOperation", "Planner", "HostsPartition", "Lanes", "_Ended", "InnerBackends", "GroupPeers",
        "IpcPeers", "LocalShares",
    },
    "a link of one view": {"DoorSession"},
    "what the user gave": {"ProcessSet", "NoWorld", "_NoGroup"},
    "made anew for each view": {"Epoch", "CardRates"},
    "makes an engine for its first view": {"NativeWorker"},
    "the rank of a matrix": {"MatrixSlot", "LowRankCoder"},
}  # fmt: skip
"""Classes that may, and why."""
FIXED = (ast.Constant, ast.UnaryOp)
"""Values in which no size is remembered."""


def _assigned(body: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Attributes of self that are assigned to, each with its value."""
    for node in ast.walk(body):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            places = target.elts if isinstance(target, ast.Tuple) else [target]
            apart = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            for place, value in zip(places, node.value.elts if apart else [node.value] * len(places), strict=True):
                if isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id == "self":
                    yield place.attr, value


def _asks(value: ast.expr) -> bool:
    """Whether an expression asks somebody for the rank or the size of the view in force."""
    return any(
        isinstance(node, ast.Attribute)
        and OF_A_VIEW.match(node.attr)
        and (getattr(node.value, "attr", None) or getattr(node.value, "id", "")).lstrip("_") in KNOWS_THE_VIEW
        for node in ast.walk(value)
    )


def _remembered(body: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines of a constructor that keep what only a round may, and the attributes."""
    for name, value in _assigned(body):
        if not isinstance(value, FIXED) and (OF_A_VIEW.match(name) or _asks(value)):
            yield value.lineno, name


def _constructors(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.walk(_tree(path)):
        for body in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(body, ast.FunctionDef) and body.name in ("__init__", "__post_init__"):
                yield node.name, body


def test_sizes_and_ranks_are_asked_for_and_not_remembered():
    excused = set().union(*REMEMBERS.values())
    for path in (path for room in OUTLIVE_A_VIEW for path in sorted((PACKAGE / room).rglob("*.py"))):
        for owner, body in _constructors(path):
            for line, name in [] if owner in excused else _remembered(body):
                pytest.fail(
                    f"{path.relative_to(ROOT)}:{line}: {owner} keeps {name} for its whole life, but the next view may"
                    " have other sizes and ranks: ask the worker's `standing` (in control, the view) in each round,"
                    " keep member numbers instead of ranks, or make the object anew for each view and say so in"
                    " REMEMBERS"
                )


def test_nobody_is_excused_who_does_not_need_it():
    found = {
        owner
        for room in OUTLIVE_A_VIEW
        for path in (PACKAGE / room).rglob("*.py")
        for owner, body in _constructors(path)
        if any(True for _ in _remembered(body))
    }
    assert set().union(*REMEMBERS.values()) <= found, "take those that don't exist any more out of REMEMBERS"


def test_a_size_that_is_remembered_is_found():
    for kept in ("self.size = route.worker.size", "self._left, self._rank = 0, rank", "self.alone = scope.size == 1"):
        assert list(_remembered(ast.parse(kept))), kept
    for kept in ("self.size = 0", "self.worker = worker", "self.root = group.size", "size = worker.size"):
        assert not list(_remembered(ast.parse(kept))), kept
