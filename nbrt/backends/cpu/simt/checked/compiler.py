"""The compilers of instrumented threads: those of `pipeline` with the passes of checked mode."""

from __future__ import annotations

from typing import Any

from numba.core.typed_passes import PreLowerStripPhis
from numba.core.untyped_passes import TranslateByteCode

from nbrt.backends.cpu.simt.checked.instrument import InstrumentPass
from nbrt.backends.cpu.simt.checked.returns import MarkReturnsPass
from nbrt.backends.cpu.simt.frontend.pipeline import DeviceCompiler, DeviceFunctions

__all__ = ["CheckedKernelCompiler"]


class _CheckedDeviceCompiler(DeviceCompiler):
    """Compiles a device function with checks."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes with instrumentation after typing, once SSA form is left."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(InstrumentPass, PreLowerStripPhis)
        passes.finalize()
        return [passes]


class CheckedKernelCompiler(_CheckedDeviceCompiler):
    """Compiles a kernel with checks."""

    is_kernel = True

    def define_pipelines(self) -> list[Any]:
        """Return the same, which first mark returns, while labels are offsets in the bytecode."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(MarkReturnsPass, TranslateByteCode)
        passes.finalize()
        return [passes]


_CheckedDeviceCompiler.devices = DeviceFunctions(_CheckedDeviceCompiler, instrumented=True)
