"""Compiling one thread with checks in it: a sibling of `pipeline`, without limits and turns."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from numba.core.typed_passes import PreLowerStripPhis
from numba.core.untyped_passes import TranslateByteCode

from nbrt.backends.cpu.simt.checked.instrument import InstrumentPass
from nbrt.backends.cpu.simt.checked.returns import MarkReturnsPass
from nbrt.backends.cpu.simt.pipeline import DeviceCompiler, ThreadDispatcher, dialect_uses
from nbrt.backends.cpu.simt.source import with_context, without_context

if TYPE_CHECKING:
    from types import FunctionType

    from nbrt.backends.cpu.simt.checked.sites import Site

__all__ = ["checked_thread", "compiled_sites"]


class _CheckedDeviceCompiler(DeviceCompiler):
    """Compiles a device function with checks."""

    @staticmethod
    def device_dispatcher(callee: Any, hidden: bool) -> ThreadDispatcher:
        """Give the checked version of a device function that this one calls."""
        return _device_dispatcher(callee, hidden)

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


_devices: weakref.WeakKeyDictionary[Any, dict[bool, ThreadDispatcher]] = weakref.WeakKeyDictionary()


def _device_dispatcher(callee: Any, hidden: bool) -> ThreadDispatcher:
    versions = _devices.setdefault(callee, {})
    if hidden not in versions:
        copy = with_context if hidden else without_context
        versions[hidden] = ThreadDispatcher(copy(callee.py_func), _CheckedDeviceCompiler)
    return versions[hidden]


def checked_thread(function: FunctionType) -> ThreadDispatcher:
    """Give what compiles one thread of a kernel with checks."""
    return ThreadDispatcher(with_context(function), _CheckedKernelCompiler)


def compiled_sites(result: Any) -> list[Site]:
    """List the sites of a compiled function and of everything that it calls."""
    return [site for use in dialect_uses(result) for site in use.sites]
