"""Generates byteps_like/control/v1/*_pb2.py from proto/ when older, or made by another release of grpcio-tools (the
messages of one major release of protobuf are refused by another). Needs grpcio-tools, nothing of this package.

The messages' import path is set by protoc's own mapping of virtual folders, so nothing is edited afterwards.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "proto" / "byteps_like" / "v1", ROOT / "proto" / "etcd")
PACKAGE = "byteps_like/control/v1"
TARGET = ROOT / PACKAGE
HEADING = f'"""Generated from proto/ with grpcio-tools {version("grpcio-tools")}."""\n'


def is_current() -> bool:
    """True if every generated file is there, of this grpcio-tools, and newer than all sources and this script."""
    sources = _sources()
    wanted = [TARGET / "__init__.py", *(TARGET / f"{source.stem}_pb2.py" for source in sources)]
    if not all(path.exists() for path in wanted) or wanted[0].read_text(encoding="utf-8") != HEADING:
        return False
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    return min(path.stat().st_mtime for path in wanted) >= newest


def _sources() -> list[Path]:
    return [source for folder in SOURCES for source in sorted(folder.glob("*.proto"))]


def generate() -> None:
    """Runs protoc; raises SystemExit with its status if it fails."""
    from grpc_tools import protoc

    names = [f"{PACKAGE}/{source.name}" for source in _sources()]
    options = [f"--python_out={ROOT}", f"--pyi_out={ROOT}", *(f"--proto_path={PACKAGE}={folder}" for folder in SOURCES)]
    status = protoc.main(["protoc", *options, *names])
    if status != 0:
        raise SystemExit(status)
    (TARGET / "__init__.py").write_text(HEADING, encoding="utf-8")


if __name__ == "__main__":
    if "--force" in sys.argv or not is_current():
        TARGET.mkdir(parents=True, exist_ok=True)
        generate()
