"""Turn PTX into a module in memory: from the cache, or by translation."""

from __future__ import annotations

import ctypes
from dataclasses import asdict
from typing import Any

import llvmlite

from simulated_cuda.ptx import cache
from simulated_cuda.ptx.compile import LoadedObject, compile_text, host, library_imports

__all__ = ["LoadedModule", "driver_functions", "load", "translate"]

_LARGE = 60_000
"""Characters of LLVM text beyond which the compiler makes little effort."""


class LoadedModule:
    """A module in memory.

    Parameters
    ----------
    facts : dict
        A `ModuleFacts` as a dictionary.
    code : bytes
        The object file.
    driver : dict of str to int
        Addresses of the functions of the driver.
    """

    def __init__(self, facts: dict[str, Any], code: bytes, driver: dict[str, int]) -> None:
        self.kernels: dict[str, dict[str, Any]] = facts["kernels"]
        self.variables: dict[str, int] = facts["variables"]
        known = {**library_imports(), **driver}
        missing = [name for name in facts["externals"] if name not in known]
        if missing:
            raise RuntimeError(f"the driver has no {', '.join(missing)}")
        self._object = LoadedObject(
            code, known, [f"ptx.{name}" for name in (*self.kernels, *self.variables)]
        )

    def address(self, name: str) -> int:
        """Return the address of a kernel or variable."""
        return self._object.address(f"ptx.{name}")


def translate(text: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the facts and the object file of a PTX text; raises PtxError."""
    from simulated_cuda.ptx.module import ModuleBuilder
    from simulated_cuda.ptx.parser import parse

    llvm_text, facts = ModuleBuilder(parse(text.decode("utf-8", "replace"))).build()
    return asdict(facts), compile_text(llvm_text, 0 if len(llvm_text) > _LARGE else 1)


def load(text: bytes, driver: dict[str, int]) -> LoadedModule:
    """Return the module of a PTX text.

    Raises
    ------
    PtxError
        If the text is not accepted.
    """
    key = cache.key_of(text, llvmlite.__version__, host())
    found = cache.fetch(key)
    if found is None:
        found = translate(text)
        cache.store(key, *found)
    return LoadedModule(*found, driver)


def driver_functions(library: ctypes.CDLL) -> dict[str, int]:
    """Return the addresses of the functions of driver/threads.h that a library exports."""
    found = {}
    for name in _DRIVER:
        function = getattr(library, name, None)
        if function is not None:
            found[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found


_DRIVER = (
    *("sim_barrier", "sim_barrier_arrive", "sim_barrier_reduce", "sim_warp_sync", "sim_shuffle"),
    *("sim_ballot", "sim_match", "sim_redux", "sim_active_mask", "sim_yield", "sim_grid_sync"),
    *("sim_trap", "sim_exit", "sim_vprintf", "sim_malloc", "sim_free", "sim_assert_fail"),
    *("sim_misaligned", "sim_set_conditional", "sim_grid_workspace"),
)
