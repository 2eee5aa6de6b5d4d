"""`make test-gpu`: runs tests/gpu, says on what, and leaves build/gpu.json (a summary) and build/gpu.xml (JUnit).

    python scripts/test_gpu.py [arguments of pytest, such as -k kernels]

Where there is no GPU, or something is missing, it says what and ends with 2: a proof in which all is skipped is none.
About ten minutes on one GPU, of which the compilation of the kernels is the first one.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build"
PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "triton", "numpy")


def why_not() -> str:
    """What is missing, as a sentence; "" if all is there."""
    try:
        from byteps_like import _core, cuda
        from byteps_like.torch.device import devices
    except ImportError as error:
        return f"{error}; `make core` builds the native core, `pip install torch` the rest"
    if why := devices.why_not() or cuda.why_not():
        return why
    return "" if hasattr(_core, "Gpu") else "the native core is of an older source: make core"


def machine() -> dict[str, Any]:
    """The device and all versions that matter."""
    import torch
    from cupy.cuda import nvrtc

    from byteps_like import _core

    gpu, properties = _core.Gpu(0), torch.cuda.get_device_properties(0)
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "gpu": gpu.name,
        "gpus": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": f"CUDA {gpu.driver_version // 1000}.{gpu.driver_version % 1000 // 10}",
        "nvrtc": ".".join(map(str, nvrtc.getVersion())),
        "cuda_of_torch": torch.version.cuda,
        "streams_wait_by_value": gpu.why_no_waits or True,
        "python": sys.version.split()[0],
        "commit": _commit(),
        **versions,
    }


def _commit() -> str:
    if not shutil.which("git"):
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def counts(report: Path) -> tuple[dict[str, int], list[str]]:
    """How the tests of a JUnit report ended, and the names of those that did not pass."""
    ended, bad = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ET.parse(report).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        how = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        ended[how] += 1
        if how != "passed":
            bad.append(f"{how}: {case.get('classname')}::{case.get('name')}")
    return ended, bad


def main() -> int:
    """0: all passed; 1: not all; 2: it could not be tried."""
    sys.path.insert(0, str(ROOT))
    if why := why_not():
        print(f"make test-gpu: {why}", file=sys.stderr)
        return 2
    found = machine()
    print("\n".join(f"{name:24}{value}" for name, value in found.items()), flush=True)
    OUT.mkdir(exist_ok=True)
    report, start = OUT / "gpu.xml", time.monotonic()
    report.unlink(missing_ok=True)
    options = ["-p", "no:cacheprovider", "-ra", "--durations=10", f"--junitxml={report}"]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", *options, *sys.argv[1:]], cwd=ROOT, check=False
    ).returncode
    if not report.is_file():
        return code or 1
    ended, bad = counts(report)
    summary = {**found, **ended, "seconds": round(time.monotonic() - start), "not_passed": bad}
    (OUT / "gpu.json").write_text(json.dumps(summary, indent=2) + "\n")
    told = ", ".join(f"{number} {how}" for how, number in ended.items())
    print(f"{found['gpu']} ({found['commit']}): {told} in {summary['seconds']} s; wrote {OUT / 'gpu.json'}")
    return code or (1 if ended["skipped"] or not ended["passed"] else 0)


if __name__ == "__main__":
    sys.exit(main())
