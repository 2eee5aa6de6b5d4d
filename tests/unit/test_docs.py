"""What the documentation names exists: links, files, commands, settings, words, diffs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.core
import typer.main
from typer.testing import CliRunner

from byteps_like.cli.main import COMMANDS, app
from byteps_like.collectives import library
from byteps_like.compression.registry import CODECS
from byteps_like.store.updates.registry import OURS
from byteps_like.store.updates.update import ValueUpdate

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")), *DOCS.rglob("*.md")])
GLOSSARY = DOCS / "reference" / "glossary.md"
CODE = ("*.py", "*.cc", "*.h", "*.proto", "*.toml")

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|cc|h|cpp|proto|md|png|json|sh|yaml)|(?:[\w.-]+/)+)`")
FOLDERS = ("byteps_like", "collectives", "csrc", "server", "proto", "tests", "bench", "docs", "examples")
PACKAGE = ("control", "torch", "worker", "launch", "cli", "portable", "wire")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(without_code(page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page_id(page)} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page_id(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_named_in_the_text_exist(page: Path) -> None:
    for name in NAMED_FILE.findall(page.read_text()):
        top = name.split("/")[0]
        if top in FOLDERS or top in PACKAGE:
            places = [ROOT / name, ROOT / "byteps_like" / name]
            assert any(place.exists() for place in places), f"{page_id(page)} names {name}"


MOST_COLUMNS = 120


def too_long(text: str) -> Iterator[tuple[int, str]]:
    """The lines that can be wrapped and aren't, with their numbers from 1. Rows of tables can't, nor code and output,
    nor one long word, such as an address."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        is_code ^= line.lstrip().startswith("```")
        has_words = len(re.sub(r"^(?:[-*>]|\d+\.) ", "", line.strip()).split()) > 1
        if len(line) > MOST_COLUMNS and has_words and not is_code and not line.lstrip().startswith("|"):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_lines_fit(page: Path) -> None:
    found = [f"{page_id(page)}:{number} ({len(line)} columns)" for number, line in too_long(page.read_text())]
    assert not found, f"wrap at {MOST_COLUMNS} columns (headings: shorten): {', '.join(found)}"


def test_only_lines_that_can_be_wrapped_count_as_too_long() -> None:
    prose, word = "word " * 25, "x" * 121
    text = f"{prose}\n| {prose} |\n```\n{prose}\n```\n- {word}\n1. {word}\n- {prose}\n# {prose}\n{'x' * 120}"
    assert [number for number, _ in too_long(text)] == [1, 8, 9]


RUN_FILE = re.compile(r"(?<![\w/.-])((?:tests|bench|examples|scripts)/[\w/-]+\.(?:py|sh|cc))")
RUN_MODULE = re.compile(r"\s-m[ \n]((?:byteps_like|tests|bench|examples|scripts)(?:\.\w+)*)")
COMMANDS_IN = [*PAGES, ROOT / "Makefile", ROOT / ".ci" / "run", *sorted((ROOT / "bench").rglob("*.py"))]


def missing(text: str) -> list[str]:
    """Files that commands name, and modules that they run by `python -m`, but nobody has."""
    files = [
        name
        for name in RUN_FILE.findall(text)
        if not any((top / name).exists() for top in (ROOT, ROOT / "byteps_like"))
    ]
    return files + [name for name in RUN_MODULE.findall(text) if not runs(name)]


def runs(module: str) -> bool:
    """Whether `python -m` finds it: a module, or a package with a __main__."""
    place = ROOT.joinpath(*module.split("."))
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


@pytest.mark.parametrize("page", COMMANDS_IN, ids=page_id)
def test_files_and_modules_in_commands_exist(page: Path) -> None:
    assert not missing(page.read_text()), f"{page_id(page)} names {missing(page.read_text())}"


def test_commands_that_name_nothing_are_found() -> None:
    text = (
        "python -m bench.training.steps, `python -m bench.gpu --index 1`, python -m byteps_like.config; bench/report.py"
    )
    assert missing(text) == []
    assert missing(text.replace("steps", "stairs")) == ["bench.training.stairs"]
    assert missing("$(PYTHON) -m bench.training") == ["bench.training"]  # a package without a __main__
    assert missing("measured with `python -m\nbench.steps`, bench/steps.py") == ["bench/steps.py", "bench.steps"]


def test_every_page_is_reached_from_the_index() -> None:
    linked: set[Path] = set()
    waiting = [ROOT / "README.md", DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in linked or not page.is_file():
            continue
        linked.add(page)
        if page.suffix == ".md":
            waiting += [(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text()) if target]
    lost = [page_id(page) for page in PAGES if page not in linked]
    assert not lost, f"link {lost} from docs/index.md or docs/decisions/README.md"


def shown_commands() -> list[str]:
    """Every `byteps-like ...` of the pages and the examples, without comments."""
    texts = [page.read_text() for page in [*PAGES, *(ROOT / "examples").glob("*.py")]]
    lines = [line.strip().lstrip("+") for text in texts for line in re.split(r"[\n`]", text)]
    commands = [re.split(r"\s+#|\s{3,}", line)[0] for line in lines if re.match(r"byteps-like [a-z]", line)]
    return sorted({command for command in commands if command.split()[1] in COMMANDS or " -" in command})


@pytest.mark.parametrize("command", shown_commands())
def test_commands_that_are_shown_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    options = words[: words.index("--")] if "--" in words else words
    result = CliRunner().invoke(app, [*options, "--help"])
    assert result.exit_code == 0, result.output
    for option in (word for word in options if word.startswith("-")):
        assert option.split("=")[0] in re.sub(r"\x1b\[[0-9;]*m", "", result.output), f"{command}: {option}"


def test_some_commands_are_shown() -> None:
    assert {command.split()[1] for command in shown_commands()} >= {"run", "scheduler", "server", "config"}


def commands(command: Any, path: tuple[str, ...] = ("byteps-like",)) -> Iterator[tuple[str, Any]]:
    """All commands that do something, "byteps-like plan shift" among them."""
    if not isinstance(command, typer.core.TyperGroup):
        yield " ".join(path), command
        return
    if command.invoke_without_command:
        yield " ".join(path), command
    context = typer.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def options_of(command: Any) -> set[str]:
    """Those that its help page shows, but for those that all commands have."""
    shown = [item for item in command.params if isinstance(item, typer.core.TyperOption) and not item.hidden]
    names = {name for item in shown for name in (*item.opts, *item.secondary_opts)}
    return names - {"--help", "-h", "--install-completion", "--show-completion"}


DESCRIBED = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("name", "command"), DESCRIBED.items(), ids=DESCRIBED.keys())
def test_every_command_is_described_with_its_options(name: str, command: Any) -> None:
    page = (DOCS / "reference" / "command-line.md").read_text()
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    found = [section for section in sections if section.splitlines()[0] == name]
    assert len(found) == 1, f"describe `{name}` in docs/reference/command-line.md under the heading '## {name}'"
    rows = "".join(line.split("|")[1] for line in found[0].splitlines() if line.startswith("| `-"))
    assert set(re.findall(r"`(--?[a-z][a-z-]*)", rows)) == options_of(command), f"the options of `{name}`"
    assert re.search(rf"^(?:[A-Z_]+=\S+ )*{name}\b", found[0], flags=re.MULTILINE), f"an example of `{name}`"


def test_described_commands_exist() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text()
    described = set(re.findall(r"^## (.*)", page, flags=re.MULTILINE))
    assert described == DESCRIBED.keys()


def test_every_codec_has_a_row_in_the_guide() -> None:
    guide = (DOCS / "how-to" / "compression.md").read_text()
    table = guide[guide.index("\n## Codecs\n") :].split("\n### ")[0]
    rows = re.findall(r"^\| (\d+) \| `(\w+)`[^|]*\| `(\w+)`", table, flags=re.MULTILINE)
    kinds = [(str(kind.id), kind.name, kind().trait.name) for kind in CODECS]
    assert rows == kinds, 'ids, codecs and their traits in docs/how-to/compression.md, "Codecs"'


def test_numbers_of_algorithms_and_codecs_are_those_in_the_code() -> None:
    numbers = {"algorithms": len(list(library.algorithms())), "codecs": len(CODECS)}
    told = [
        (page, *found) for page in PAGES for found in re.findall(r"\b(\d+) (algorithms|codecs)\b", page.read_text())
    ]
    for page, number, what in told:
        assert int(number) == numbers[what], f"{page_id(page)} says {number} {what}, there are {numbers[what]}"


def test_every_file_of_algorithms_has_a_row() -> None:
    used = {
        function.__module__.rpartition(".")[2] for row in library.algorithms() for function in (row.build, row.cost)
    }
    files = {path.stem for path in (ROOT / "byteps_like" / "collectives" / "algorithms").glob("[!_]*.py")}
    assert files == used, "add a row to byteps_like/collectives/library.py"


def test_every_policy_has_a_row_in_the_guide_and_every_file_is_of_a_policy() -> None:
    room = ROOT / "server" / "policy"
    table = (room / "policies.cc").read_text()
    page = (DOCS / "how-to" / "add-a-policy.md").read_text()
    told = re.findall(r"^\| `(\w+)` \|", page.split("\n## ")[0], flags=re.MULTILINE)
    assert told == re.findall(r'\.name = "(\w+)"', table), "the table at the top of docs/how-to/add-a-policy.md"
    files = {path.name for path in room.glob("*.h")} - {"policy.h", "policies.h"}
    used = set(re.findall(r'#include "server/policy/(\w+\.h)"', table)) - {"policies.h"}
    assert files == used, "add a row to server/policy/policies.cc"


def test_every_update_has_a_row_in_the_guide() -> None:
    page = (DOCS / "how-to" / "add-an-update.md").read_text().split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \| ([^|]*) \|", page, flags=re.MULTILINE)
    told = [(name, state, types) for names, state, types in rows for name in re.findall(r"`(\w+)`", names)]
    made = [(kind.name, _state_of(kind()), "fp32, fp64" + ", int64" * kind.takes_integers) for kind in OURS]
    assert told == made, "names, state and types in the table at the top of docs/how-to/add-an-update.md"


def _state_of(update: ValueUpdate) -> str:
    arrays, *shape = update.state_shape((2, 3))
    size = f"{4 * arrays} B" if arrays else "0"
    return size if shape == [2, 3] else f"{size} per row"


def test_the_page_on_options_knows_which_exclude_each_other() -> None:
    pytest.importorskip("torch")
    from byteps_like.torch.optimizer.choices import CONFLICTS

    rows = re.findall(r"^\| `([^`]+)` \| (`.*`) \|$", (DOCS / "how-to" / "choose-options.md").read_text(), re.MULTILINE)
    told = {frozenset((one, other)) for one, others in rows for other in re.findall(r"`([^`]+)`", others)}
    assert told == {frozenset((one, other)) for one, other, _ in CONFLICTS}


@pytest.mark.processes
def test_the_table_of_settings_is_the_generated_one() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "byteps_like.config"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert (DOCS / "reference" / "config.md").read_text() == made, "run `make docs`"


def test_the_example_in_the_readme_trains_alone() -> None:
    torch = pytest.importorskip("torch")
    import byteps_like.torch as bps

    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"batches": [(torch.randn(8, 64), torch.arange(8))] * 3}
    try:
        exec(code, names)
        gradients = [parameter.grad for parameter in names["model"].parameters()]
        assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    finally:
        bps.shutdown()


def test_make_recipes_that_are_named_exist() -> None:
    recipes = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)(?:`|  |$)", text, flags=re.MULTILINE))
        assert named <= recipes, f"{page_id(page)}: {named - recipes}"


@cache
def source() -> str:
    folders = [ROOT / name for name in ("byteps_like", "collectives", "compression", "csrc", "server", "proto")]
    files = [path for folder in folders for kind in CODE for path in folder.rglob(kind) if "/v1/" not in str(path)]
    files += list((ROOT / "proto").rglob("*.proto"))
    return "\n".join(path.read_text() for path in files)


def test_names_in_the_glossary_are_names_in_the_code() -> None:
    text = source()
    words = set(re.findall(r"\w+", text.lower()))  # found at once, where a search goes through all of the text
    rows = re.findall(r"^\| \*\*.*\| (.*) \|$", GLOSSARY.read_text(), flags=re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        for name in re.findall(r"`([^`]+)`", row):
            last = name.split(".")[-1].lower()
            assert {last, f"k{last}"} & words or re.search(rf"\bk?{re.escape(last)}\b", text, re.IGNORECASE), name


GLOSSARY_WORDS = {
    "worker", "server", "scheduler", "rank", "world_size", "local_rank", "local_size", "epoch", "arena", "partition",
    "key", "round", "contribution", "segment", "frame", "link", "stream", "shard", "credit", "region", "door", "handle",
    "operation", "push_pull", "broadcast", "slot", "lab", "chaos", "resume", "stall", "secret", "member", "world",
    "job", "group", "collective", "schedule", "algorithm", "chunk", "section", "layout", "program", "plan", "run",
    "mesh", "exchange", "lane", "call", "tag", "eager", "stash", "clear", "selector", "communicator", "area", "stage",
    "driver",
}  # fmt: skip


def test_the_glossary_has_the_words_of_the_code() -> None:
    terms = ", ".join(re.findall(r"^\| (\*\*.*?) \|", GLOSSARY.read_text(), flags=re.MULTILINE))
    known = set(re.findall(r"[a-z_]+", terms))
    assert known >= GLOSSARY_WORDS, GLOSSARY_WORDS - known
    messages = re.findall(r"^message (\w+?)(?:Request|Reply)? \{", source(), flags=re.MULTILINE)
    assert {"Member", "World"} <= set(messages)


def test_every_error_is_explained() -> None:
    kinds = re.findall(
        r"^class (?!OperationError)(\w+Error)\((?:BytePSLike|Operation)Error",
        (ROOT / "byteps_like" / "errors.py").read_text(),
        re.MULTILINE,
    )
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference" / "errors.md").read_text(), flags=re.MULTILINE)
    assert sorted(kinds) == sorted(rows)


def test_threads_that_are_started_are_explained() -> None:
    page = (DOCS / "explanation" / "threads.md").read_text()
    named = r"(?:threading\.Thread\([^\n]*name=|name = |Stepper\()f?\"(byteps[^\"{]+)"
    started = re.findall(named, source())
    assert started
    for name in started:
        assert re.search(rf"`{name}\d?`", page), f"explain `{name}` in docs/explanation/threads.md"


@pytest.mark.parametrize(("script", "original"), [("from_byteps", "byteps"), ("from_horovod", "horovod")])
def test_migration_changes_one_line(script: str, original: str) -> None:
    page = (DOCS / "how-to" / "migration.md").read_text()
    (removed, added) = re.search(rf"b/examples/{script}\.py\n-(.*)\n\+(.*)\n", page).groups()  # type: ignore[union-attr]
    lines = (ROOT / "examples" / f"{script}.py").read_text().splitlines()
    assert lines.count(added) == 1
    assert removed == added.replace("byteps_like", original)
    assert sum("byteps_like" in line for line in lines) == 1


@pytest.mark.processes
def test_commits_that_are_named_exist() -> None:
    def git(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history is not here")
    for page in PAGES:
        for name in re.findall(r"\bcommit (?:before )?([0-9a-f]{7,40})\b", page.read_text()):
            assert git("cat-file", "-e", f"{name}^{{commit}}").returncode == 0, f"{page_id(page)} names commit {name}"
