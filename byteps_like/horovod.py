"""`import horovod.torch as hvd`, and `import horovod`, of scripts that stay as they are.

    import byteps_like
    byteps_like.as_horovod()

before the script's own imports; or, without touching it, `python -m byteps_like.horovod train.py ARGUMENTS`.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError

VERSION = "0.28.1"
"""Of Horovod, whose interface this is."""


def run(*_arguments: object, **_settings: object) -> NoReturn:
    """Horovod's starter of processes, which libraries import beside `horovod.torch`. Raises InvalidArgumentError."""
    raise InvalidArgumentError(
        "horovod.run() starts no processes here; start the script by"
        " `byteps-like run -n RANKS -- python -m byteps_like.horovod SCRIPT.py`"
    )


def __getattr__(name: str) -> Any:
    """What else scripts take from `import byteps_like.horovod as hvd` is byteps_like.torch's."""
    import byteps_like.torch as ours  # not at the top: torch takes seconds

    return getattr(ours, name)


_SAME = ("torch", "torch.mpi_ops", "torch.functions", "torch.compression", "torch.optimizer", "torch.sync_batch_norm")
"""Modules below `horovod` whose names are all those of byteps_like.torch."""
_COMMON = {
    "common.exceptions": ("HorovodInternalError", "HostsUpdatedInterrupt"),
    "common.process_sets": ("ProcessSet", "add_process_set", "global_process_set", "remove_process_set"),
    "common.util": ("ccl_built", "cuda_built", "ddl_built", "gloo_built", "mpi_built", "nccl_built", "rocm_built"),
}
"""And others, by the names that they have."""
_ELASTIC = {
    "torch.elastic": ("ElasticSampler", "ObjectState", "State", "TorchState", "run"),
    "torch.elastic.sampler": ("ElasticSampler",),
    "torch.elastic.state": (
        "ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler", "TorchState",
        "get_handler_registry", "set_handler_registry",
    ),
    "common.elastic": ("ObjectState", "State"),
}  # fmt: skip
"""Those of byteps_like.torch.elastic."""


def as_horovod() -> ModuleType:
    """Puts byteps_like.torch in the place of `horovod.torch`, for all imports from here on; returns `horovod`.

    Horovod's variables (HOROVOD_RANK, HOROVOD_SIZE, ...) say what the launcher has told this process. Idempotent.
    Raises InvalidArgumentError if Horovod itself has been imported already, ConfigError.
    """
    known = sys.modules.get("horovod")
    if known is not None:
        if getattr(known, "__file__", None) == __file__:
            return known
        raise InvalidArgumentError("horovod has been imported already; call as_horovod() before that")
    import byteps_like.torch as ours
    from byteps_like.torch.compression import casts

    modules = {"horovod": ModuleType("horovod", __doc__)}
    others = ("common", "runner", *_SAME, *_COMMON, *_ELASTIC)
    modules |= {f"horovod.{name}": ModuleType(f"horovod.{name}", ours.__doc__) for name in others}
    for name, module in modules.items():
        vars(module).update(_loaded(name, modules))
    for name in _SAME:
        _take(modules[f"horovod.{name}"], ours, ours.__all__)
    for name, names in _COMMON.items():
        _take(modules[f"horovod.{name}"], ours, names)
    for name, names in _ELASTIC.items():
        vars(modules[f"horovod.{name}"]).update({each: getattr(ours.elastic, each) for each in names})
    for kind in (casts.Compressor, casts.NoneCompressor, casts.FP16Compressor):
        setattr(modules["horovod.torch.compression"], kind.__name__, kind)
    for name in ("horovod", "horovod.runner"):
        vars(modules[name])["run"] = run
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    sys.modules.update(modules)
    _tell(Config.from_env())
    return modules["horovod"]


def _tell(config: Config) -> None:
    """Sets Horovod's variables, if the launcher gives ranks: else only `init()` knows them."""
    if config.rank < 0:
        return
    hosts = max(config.world_size // config.local_size, 1)
    places = {
        "RANK": config.rank, "SIZE": config.world_size, "LOCAL_RANK": config.local_rank,
        "LOCAL_SIZE": config.local_size, "CROSS_RANK": config.rank // config.local_size, "CROSS_SIZE": hosts,
    }  # fmt: skip
    for name, number in places.items():
        os.environ.setdefault(f"HOROVOD_{name}", str(number))


def _loaded(name: str, modules: dict[str, ModuleType]) -> dict[str, Any]:
    """What the import system gives a module."""
    is_package = any(other.startswith(f"{name}.") for other in modules)
    spec = importlib.machinery.ModuleSpec(name, None, is_package=is_package, origin=__file__)
    place: dict[str, Any] = {"__path__": []} if is_package else {}
    return {"__spec__": spec, "__file__": __file__, "__version__": VERSION, "__package__": spec.parent, **place}


def _take(module: ModuleType, ours: ModuleType, names: Iterable[str]) -> None:
    vars(module).update({name: getattr(ours, name) for name in names}, __all__=list(names))
    vars(module)["__getattr__"] = ours.__getattr__  # says what there is not


def main() -> None:
    """Runs the script that the command line names, with the arguments behind it."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m byteps_like.horovod SCRIPT.py [ARGUMENTS]")
    importlib.import_module("byteps_like.horovod").as_horovod()  # not this module's, which is called __main__
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
