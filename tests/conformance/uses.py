"""Counts what a test reaches of nbrt: kernels, launches, driver functions and child processes."""

from __future__ import annotations

import functools
import subprocess
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from numba.cuda.cudadrv import driver

from nbrt.compat import numba_cuda
from nbrt.compat.numba_cuda.dispatcher import Dispatcher
from nbrt.compat.numba_cuda.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Uses"]


class Uses:
    """A counter, from its making on, in a process in which nbrt is installed under numba-cuda.

    Child processes count as a use: nbrt is installed there as well.
    """

    def __init__(self) -> None:
        assert numba_cuda.is_installed()
        self.count = 0
        for owner, names in {
            Dispatcher: ("__init__", "call", "compile", "compile_device"),
            Launch: ("__call__",),
            subprocess.Popen: ("__init__",),
            BaseProcess: ("start",),
            driver.binding: [name for name in vars(driver.binding) if name.startswith("cu")],
        }.items():
            for name in names:
                setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            self.count += 1
            return function(*args, **keywords)

        return call
