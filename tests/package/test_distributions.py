"""What is shipped: the sdist is what git tracks, the wheel holds core and stubs and runs where nothing else is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 110.0
LEFTOVERS = [
    "byteps_like/__pycache__/errors.cpython-311.pyc",
    "byteps_like/_core.cpython-311-x86_64-linux-gnu.so",
    "byteps_like/control/v1/types_pb2.py",
    "build/native/CMakeCache.txt",
    "dist/byteps_like-0.0.0.tar.gz",
    ".venv/pyvenv.cfg",
]
"""What lies about in a tree that was worked in."""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command, which must end well."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    return {name for name in names if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with an empty folder for setuptools, and CMake's own folder, which is up to date after `make core`."""
    work = tmp_path_factory.mktemp("wheel")
    build = ["build", "--build-base", work / "build", "egg_info", "--egg-base", work]
    run(sys.executable, "setup.py", "-q", *build, "bdist_wheel", "-b", work / "bdist", "-d", work / "dist", cwd=ROOT)
    (found,) = (work / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment: the wheel, and read from beside it the packages that it needs."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-deps", "--no-index", wheel, cwd=home)
    ours = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # A folder named in a .pth file is searched after ours, and .pth files in it (the editable install) are not read.
    (ours / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python.parent


def test_the_sdist_is_what_git_tracks(tracked: set[str], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    for name in LEFTOVERS:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path, cwd=tree)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        files = {member.name.partition("/")[2] for member in opened if member.isfile()}
    made = {name for name in files if name.startswith("byteps_like.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert files - made == tracked


def test_the_wheel_holds_packages_core_stubs_and_kernels_and_nothing_else(wheel: Path, tracked: set[str]) -> None:
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    core = {name for name in files if name.startswith("byteps_like/_core.") and name.endswith(".so")}
    stubs = {name for name in files if name.startswith("byteps_like/control/v1/")}
    protos = [Path(name).stem for name in tracked if name.endswith(".proto")]
    assert len(core) == 1
    assert stubs >= {f"byteps_like/control/v1/{stem}_pb2.{kind}" for stem in protos for kind in ("py", "pyi")}
    assert "byteps_like/control/v1/__init__.py" in stubs
    sources = {name for name in tracked if name.startswith("byteps_like/") and name.endswith((".py", "py.typed"))}
    kernels = {f"byteps_like/cuda/kernels/{Path(name).name}" for name in tracked if name.endswith((".cu", ".cuh"))}
    assert files - core - stubs == sources | kernels


def test_the_wheel_carries_its_metadata(wheel: Path) -> None:
    opened = zipfile.ZipFile(wheel)
    (folder,) = {name.partition("/")[0] for name in opened.namelist() if ".dist-info/" in name}
    assert f"{folder}/licenses/LICENSE" in opened.namelist()
    metadata = opened.read(f"{folder}/METADATA").decode()
    for line in ("License-Expression: Apache-2.0", "Author: byteps_like contributors", "Requires-Python: <3.14,>=3.11"):
        assert line in metadata.splitlines()
    assert "torch" in metadata.partition("Provides-Extra: torch")[2], "torch is an extra, not a requirement"
    assert "cp{}{}-linux".format(*sys.version_info[:2]) in wheel.name.replace("manylinux", "linux")


def test_the_wheel_is_imported_from_where_it_was_installed(installed: Path, tmp_path: Path) -> None:
    code = "import byteps_like, byteps_like._core as core; print(byteps_like.__file__); print(core.__file__)"
    places = run(installed / "python", "-I", "-c", code, cwd=tmp_path).split()
    assert [Path(place).is_relative_to(installed.parent) for place in places] == [True, True], places


def test_the_command_line_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "scheduler" in run(installed / "byteps-like", "--help", cwd=tmp_path)
