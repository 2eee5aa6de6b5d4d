"""byteps_like: a parameter-server and collective communication runtime for PyTorch."""

import importlib
from types import ModuleType

__version__ = "0.1.0"


def as_horovod() -> ModuleType:
    """Puts `byteps_like.torch` in the place of `horovod.torch`: see byteps_like.horovod."""
    made: ModuleType = importlib.import_module("byteps_like.horovod").as_horovod()
    return made
