"""scripts/check_symbols.py names what the native core needs and nobody defines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
namespace byteps_like { int Nowhere(int); }
extern "C" int PyLong_AsLong(void*);
int f() { return byteps_like::Nowhere(1) + PyLong_AsLong(nullptr); }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.processes
def test_a_missing_function_is_named_and_python_s_are_not(tmp_path: Path) -> None:
    (tmp_path / "x.cc").write_text(SOURCE)
    module = tmp_path / "x.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-o", module, tmp_path / "x.cc"], check=True)
    found = subprocess.run(
        [sys.executable, ROOT / "scripts/check_symbols.py", module], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "Nowhere" in found.stderr
    assert "PyLong" not in found.stderr
