"""The compilers of instrumented threads: those of `pipeline` with the passes of checked mode."""

from __future__ import annotations

from typing import Any

from nbrt.backends.cpu.simt.checked.instrument import InstrumentPass
from nbrt.backends.cpu.simt.checked.returns import MarkReturnsPass
from nbrt.backends.cpu.simt.frontend.passes import StripPhis, Translate
from nbrt.backends.cpu.simt.frontend.pipeline import DeviceCompiler, DeviceFunctions

__all__ = ["CheckedKernelCompiler"]


class _CheckedDeviceCompiler(DeviceCompiler):
    """Compiles a device function with checks."""

    def make_passes(self) -> Any:
        """Return Numba's passes with instrumentation after typing, once SSA form is left."""
        passes = super().make_passes()
        passes.add_pass_after(InstrumentPass, StripPhis)
        return passes


class CheckedKernelCompiler(_CheckedDeviceCompiler):
    """Compiles a kernel with checks."""

    is_kernel = True

    def make_passes(self) -> Any:
        """Return the same, which first mark returns, while labels are offsets in the bytecode."""
        passes = super().make_passes()
        passes.add_pass_after(MarkReturnsPass, Translate)
        return passes


_CheckedDeviceCompiler.devices = DeviceFunctions(_CheckedDeviceCompiler, instrumented=True)
