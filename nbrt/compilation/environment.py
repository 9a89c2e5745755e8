"""The state of a process on which compilation depends, sent with every job."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from nbrt import config

__all__ = ["SINGLE_THREADED", "Environment"]

SINGLE_THREADED = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "NUMBA", "NUMEXPR", "OPENBLAS")
} | {"VECLIB_MAXIMUM_THREADS": "1", "BLIS_NUM_THREADS": "1"}
"""Environment variables under which libraries start no threads."""

_NOT_SENT = {"NUMBA_DEFAULT_NUM_THREADS", "NUMBA_NUM_THREADS", "THREADING_LAYER"}
_PLAIN = (type(None), bool, int, float, str, tuple, list)


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment variables, folder, paths of imports, and settings of nbrt and Numba.

    Attributes
    ----------
    variables : dict
        Those of `os.environ`.
    folder : str
        The current one, for relative paths in settings.
    paths : list of str
        `sys.path`.
    settings : dict
        The fields of `nbrt.config.Settings`.
    numba : dict
        The plain values of `numba.config`, which programs may change.
    """

    variables: dict[str, str]
    folder: str
    paths: list[str]
    settings: dict[str, Any]
    numba: dict[str, Any]

    @classmethod
    def of_this_process(cls) -> Environment:
        """Return the state of this process."""
        folder = ""
        with suppress(OSError):  # the folder may have been deleted
            folder = os.getcwd()
        numba = sys.modules.get("numba.core.config")
        values = {
            name: value
            for name, value in (vars(numba) if numba else {}).items()
            if name.isupper() and name not in _NOT_SENT and isinstance(value, _PLAIN)
        }
        return cls(dict(os.environ), folder, list(sys.path), asdict(config.settings()), values)

    def apply(self) -> None:
        """Make it the state of this process, which stays single-threaded."""
        variables = self.variables | SINGLE_THREADED
        if dict(os.environ) != variables:
            os.environ.clear()
            os.environ.update(variables)
        if self.folder:
            with suppress(OSError):
                os.chdir(self.folder)
        if sys.path != self.paths:
            sys.path[:] = self.paths
        numba = sys.modules.get("numba.core.config")
        for name, value in self.numba.items() if numba else ():
            if getattr(numba, name, value) != value:
                setattr(numba, name, value)
        config.put_in_force(**self.settings | {"compile_workers": 0})
