"""`make kernels`: compiles every csrc/cuda/*.cu for each architecture with nvcc and, as far as PTX, with NVRTC.

Warnings are errors, and so is a kernel that spills registers to memory. What the native core declares of CUDA's driver
by itself is compared with cuda.h. No device is needed, and only what has changed
is compiled. The compilers are nvcc on PATH, else those of requirements-kernels.lock, which go into build/cuda; where
they can't be had, that is said, and nothing is checked.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import re
import shutil
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "kernels"
WHEELS = ROOT / "build" / "cuda"
LOCK = ROOT / "requirements-kernels.lock"
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
USED = re.compile(r"Used (\d+) registers")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
SHARED = re.compile(r"(\d+) bytes smem")

if TYPE_CHECKING:
    from byteps_like.cuda.sources import KernelSource


def sources_module() -> types.ModuleType:
    """byteps_like.cuda.sources by its file: it must be readable where the package is not built."""
    sys.path.insert(0, str(ROOT / "byteps_like" / "cuda"))
    return importlib.import_module("sources")


@dataclass(frozen=True)
class Compiled:
    """What came of one source for one architecture; `used`: per kernel its registers and bytes of shared memory."""

    failure: str
    used: dict[str, tuple[int, int]]


class Nvcc:
    """A front end as users of CUDA have it, whose warnings and use of registers are looked at."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout

    def compile(self, source: KernelSource, architecture: str, options: tuple[str, ...]) -> Compiled:
        """To machine code, which is thrown away."""
        text = WORK / f"{source.name}-{architecture}.cu"
        text.write_text(source.text, encoding="utf-8")
        command = [
            self.path,
            *options,
            f"-arch={architecture}",
            "-Werror",
            "all-warnings",
            "-Xptxas",
            "-v,-warn-spills",
        ]
        done = subprocess.run([*command, "-cubin", "-o", "/dev/null", str(text)], capture_output=True, text=True)
        log = done.stdout + done.stderr
        used: dict[str, tuple[int, int]] = {}
        failure = log if done.returncode != 0 else ""
        for part in ENTRY.split(log)[1:]:
            if not USED.search(part):
                name = part
                continue
            shared = SHARED.search(part)
            used[name] = (int(USED.findall(part)[0]), int(shared[1]) if shared else 0)
            if any(int(size) for sizes in SPILL.findall(part) for size in sizes):
                failure += f"kernel {name} spills registers to memory:{part}"
        return Compiled(failure or _missing(source, used), used)


class Nvrtc:
    """What compiles at run time, by ctypes: it has no headers but what the source brings."""

    def __init__(self, path: str) -> None:
        # What it looks for by its name alone when it compiles.
        ctypes.CDLL(str(next(Path(path).parent.glob("libnvrtc-builtins.so.*"))), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"NVRTC {major.value}.{minor.value}"

    def compile(self, source: KernelSource, architecture: str, options: tuple[str, ...]) -> Compiled:
        """To PTX, from which nvcc's assembler goes on; anything said about it is a failure."""
        library, program = self.library, ctypes.c_void_p()
        text, name = source.text.encode(), f"{source.name}.cu".encode()
        library.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
        given = [*options, f"--gpu-architecture={architecture.replace('sm', 'compute')}"]
        error = library.nvrtcCompileProgram(
            program, len(given), (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
        )
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        library.nvrtcDestroyProgram(ctypes.byref(program))
        said = log.value.decode().strip()
        return Compiled(said or (f"NVRTC error {error}" if error else ""), {})


def _missing(source: KernelSource, used: dict[str, tuple[int, int]]) -> str:
    lost = set(source.kernels) ^ set(used)
    return f"{source.name}.cu: {sorted(lost)} is not both declared by KERNEL and compiled" if lost else ""


def compilers() -> tuple[list[Nvcc | Nvrtc], list[str]]:
    """Those there are, and what is said about the others."""
    on_path = shutil.which("nvcc")
    found: list[Nvcc | Nvrtc] = [Nvcc(on_path)] if on_path else []
    folder = WHEELS / "nvidia" / "cu13"
    why = "" if (folder / "lib").is_dir() else install(["nvidia-cuda-nvrtc"] if on_path else [])
    if why:
        return found, [f"NVRTC{'' if on_path else ' and nvcc'} can't be installed: {why}"]
    nvcc = folder / "bin" / "nvcc"
    if not on_path and nvcc.is_file():
        for tool in (*(folder / "bin").iterdir(), folder / "nvvm" / "bin" / "cicc"):
            tool.chmod(tool.stat().st_mode | 0o111)
        found.append(Nvcc(str(nvcc)))
    return [*found, *(Nvrtc(str(path)) for path in sorted((folder / "lib").glob("libnvrtc.so.*"))[:1])], []


def install(names: list[str]) -> str:
    """Of the lock file these packages (none: all) into build/cuda; returns why it failed."""
    wanted = [
        line for line in LOCK.read_text().split("\n") if "==" in line and (not names or line.split("==")[0] in names)
    ]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(WHEELS), *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().split("\n") or ["pip failed"])[-1]


def check(compiler: Nvcc | Nvrtc, source: KernelSource, architecture: str, options: tuple[str, ...]) -> Compiled:
    """As compiled now, or with the same text, options and compiler before."""
    what = "\0".join((compiler.version, source.text, architecture, *options, Path(__file__).read_text()))
    stamp = WORK / f"{source.name}-{architecture}-{type(compiler).__name__}.json"
    number = hashlib.sha256(what.encode()).hexdigest()
    if stamp.is_file():
        before = json.loads(stamp.read_text())
        if before["number"] == number:
            return Compiled("", {name: tuple(used) for name, used in before["used"].items()})
    made = compiler.compile(source, architecture, options)
    if not made.failure:
        stamp.write_text(json.dumps({"number": number, "used": made.used}))
    return made


def declarations() -> str:
    """What is wrong with csrc/gpu/cuda_abi.h, by a cuda.h of the wheels and the host's compiler."""
    include, compiler = WHEELS / "nvidia" / "cu13" / "include", shutil.which("c++")
    if compiler is None or not (include / "cuda.h").is_file():
        return ""
    options = ["-std=c++20", "-fsyntax-only", f"-I{ROOT}", f"-I{include}"]
    command = [compiler, *options, str(ROOT / "tests" / "native" / "cuda_abi_test.cc")]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def table(used: dict[str, dict[str, tuple[int, int]]]) -> str:
    """A row a kernel: its registers by architecture, and the shared memory of the last."""
    architectures = list(next(iter(used.values()), {}))
    lines = ["registers a thread".ljust(34) + "".join(name.rjust(7) for name in architectures) + "  shared bytes"]
    for kernel, by_architecture in sorted(used.items()):
        registers = "".join(str(by_architecture[name][0]).rjust(7) for name in architectures)
        lines.append(f"{kernel.ljust(34)}{registers}{by_architecture[architectures[-1]][1] or '':>14}")
    return "\n".join(lines)


def main() -> int:
    """Compiles all, tells all failures; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the registers of every kernel")
    arguments = parser.parse_args()
    module = sources_module()
    WORK.mkdir(parents=True, exist_ok=True)
    found, notes = compilers()
    # In turns: NVRTC compiles one source at a time, and nvcc is a process.
    tasks = [
        (compiler, source, name) for source in module.sources() for name in module.ARCHITECTURES for compiler in found
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda task: check(*task, module.OPTIONS), tasks))
    used: dict[str, dict[str, tuple[int, int]]] = {}
    failures = 0
    if wrong := declarations():
        failures += 1
        print(f"== csrc/gpu/cuda_abi.h is not what cuda.h says ==\n{wrong}")
    for (compiler, source, architecture), result in zip(tasks, results, strict=True):
        for kernel, registers in result.used.items():
            used.setdefault(kernel, {})[architecture] = registers
        if result.failure:
            failures += 1
            print(f"== {source.name}.cu, {type(compiler).__name__} for {architecture} ==\n{result.failure}")
    if arguments.table and used and not failures:
        print(table(used))
    names = " and ".join(type(compiler).__name__ for compiler in found) or "no compiler"
    print("\n".join([*notes, f"kernels: {len(tasks)} compiled by {names}, {failures} failed"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
