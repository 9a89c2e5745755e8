"""Compiling one thread with checks in it: a sibling of `pipeline`, without limits and turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core.typed_passes import PreLowerStripPhis
from numba.core.untyped_passes import TranslateByteCode

from nbrt.backends.cpu.simt.checked.instrument import InstrumentPass
from nbrt.backends.cpu.simt.checked.returns import MarkReturnsPass
from nbrt.backends.cpu.simt.frontend.pipeline import (
    DeviceCompiler,
    DeviceFunctions,
    ThreadDispatcher,
    dialect_uses,
)
from nbrt.backends.cpu.simt.frontend.source import with_context

if TYPE_CHECKING:
    from nbrt.backends.captures import Captures
    from nbrt.backends.cpu.simt.checked.source_locations import Site

__all__ = ["checked_thread", "compiled_sites"]


class _CheckedDeviceCompiler(DeviceCompiler):
    """Compiles a device function with checks."""

    @staticmethod
    def device_dispatcher(callee: Any, hidden: bool) -> ThreadDispatcher:
        """Give the checked version of a device function that this one calls."""
        return _devices.dispatcher(callee, hidden)

    def define_pipelines(self) -> list[Any]:
        """Put the pass in once types are known and SSA form is left."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(InstrumentPass, PreLowerStripPhis)
        passes.finalize()
        return [passes]


class _CheckedKernelCompiler(_CheckedDeviceCompiler):
    """Compiles a kernel with checks."""

    is_kernel = True

    def define_pipelines(self) -> list[Any]:
        """Mark returns first: while blocks still say where in the bytecode they are."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(MarkReturnsPass, TranslateByteCode)
        passes.finalize()
        return [passes]


_devices = DeviceFunctions(_CheckedDeviceCompiler)


def checked_thread(captures: Captures) -> ThreadDispatcher:
    """Give what compiles one thread of a kernel with checks."""
    return ThreadDispatcher(with_context(captures.frozen), _CheckedKernelCompiler, captures)


def compiled_sites(result: Any) -> list[Site]:
    """List the sites of a compiled function and of everything that it calls."""
    return [site for use in dialect_uses(result) for site in use.sites]
