"""Builds the native core with CMake and the gRPC stubs with grpc_tools; everything else is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
STUBS = "byteps_like.control.v1"


def generate_stubs() -> None:
    """Writes byteps_like/control/v1/*_pb2*.py from proto/."""
    subprocess.run([sys.executable, "-P", str(ROOT / "byteps_like/control/generate.py")], check=True, cwd=ROOT)


class BuildStubs(build_py):
    """Python sources, with the generated gRPC stubs and the GPU kernels among them."""

    def run(self) -> None:
        """Generates, then copies."""
        generate_stubs()
        if STUBS not in self.packages:  # in a clean tree the folder came into being just now
            self.packages.append(STUBS)
        super().run()
        kernels = Path(self.build_lib, "byteps_like/cuda/kernels")
        kernels.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / "csrc/cuda").glob("*.cu*"):
            shutil.copy2(path, kernels)


class CMakeBuild(build_ext):
    """Configures and builds `byteps_like._core`; the build folder is kept, so touching one file rebuilds in seconds."""

    def build_extension(self, ext: Extension) -> None:
        """Builds in build/cmake-<python tag> and copies the module to where setuptools wants it."""
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        work = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        # The same CMake whoever calls: another one would configure and compile everything anew.
        tools = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        configure = ["cmake", "-S", str(ROOT), "-B", str(work), f"-DPython_EXECUTABLE={sys.executable}"]
        if not (work / "CMakeCache.txt").exists() and shutil.which("ninja", path=tools["PATH"]):
            configure += ["-G", "Ninja"]
        subprocess.run(configure, check=True, env=tools)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        subprocess.run(["cmake", "--build", str(work), "--target", "_core", "-j", jobs], check=True, env=tools)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(next((work / "module").glob("_core*.so")), target)

    def copy_extensions_to_source(self) -> None:
        """Puts the module beside the sources as a new file: processes that run with the old one keep it."""
        for ext in self.extensions:
            (ROOT / self.get_ext_filename(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()


setup(
    ext_modules=[Extension("byteps_like._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildStubs},
)
