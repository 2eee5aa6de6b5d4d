"""Modules of users that a server imports, for the functions that they register."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

from byteps_like.errors import ConfigError

log = logging.getLogger(__name__)


def import_modules(names: str) -> None:
    """Imports them, in order; those in the current folder are found, too. `names` are separated by commas.

    Raises ConfigError for one that can't be imported, and says why.
    """
    modules = [name.strip() for name in names.split(",") if name.strip()]
    if modules and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # of a user's code: anything
            log.exception("module %s", name)
            raise ConfigError(
                f"this server can't import {name!r} ({type(error).__name__}: {error}): --import and server_imports name"
                " modules that are installed or in the server's current folder"
            ) from error
