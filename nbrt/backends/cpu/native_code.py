"""Machine code from LLVM IR that is part of nbrt, and the exceptions of kernels that it calls."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock

from nbrt.backends.cpu.simt.processor import processor
from nbrt.backends.cpu.simt.stop_codes import (
    ATTEND,
    CALLING_CONVENTION,
    INTERRUPTED,
    RETURN_NONE,
    STOPPED,
    attend_module,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PAUSE", "compiled", "offsets", "raise_kernel_error", "template_names"]

_IS_X86 = platform.machine() in ("x86_64", "AMD64")

PAUSE = "call void @llvm.x86.sse2.pause()" if _IS_X86 else ""
"""An instruction for loops that wait: it leaves the core to its other thread for a moment."""

_DECLARED_PAUSE = "declare void @llvm.x86.sse2.pause()" if _IS_X86 else ""

_POSIX = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @usleep(i32)

define internal i64 @clock() {{
  %time = alloca [2 x i64], align 8
  %result = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}

define internal void @wait() {{
  %result = call i32 @usleep(i32 20)
  ret void
}}
"""

_WINDOWS = """
declare i64 @llvm.readcyclecounter()
declare void @Sleep(i32)

; In nanoseconds, for a processor of 4 GHz; it decides only whether a launch is long.
define internal i64 @clock() {
  %cycles = call i64 @llvm.readcyclecounter()
  %scaled = lshr i64 %cycles, 2
  ret i64 %scaled
}

define internal void @wait() {
  call void @Sleep(i32 0)
  ret void
}
"""

_kept: list[object] = []
"""Objects that hold machine code, kept for the life of the process."""


def offsets(*structures: type[ctypes.Structure], prefix: str = "") -> dict[str, object]:
    """Return the offsets of the fields of structures, by name behind a prefix."""
    return {
        f"{prefix}{name}": getattr(structure, name).offset
        for structure in structures
        for name, *_ in structure._fields_
    }


def template_names() -> dict[str, object]:
    """Return what all templates of LLVM IR may name: codes of status, and code of the platform."""
    return {
        "convention": CALLING_CONVENTION,
        "attend": ATTEND,
        "stopped_code": STOPPED,
        "interrupted_code": INTERRUPTED,
        "none_code": RETURN_NONE,
        "platform": _platform_code(),
        "attend_module": attend_module(""),
    }


def _platform_code() -> str:
    """Return LLVM IR of ``i64 @clock()``, in nanoseconds, ``void @wait()``, and of `PAUSE`."""
    windows = sys.platform == "win32"
    clock = _WINDOWS if windows else _POSIX.format(clock=time.CLOCK_MONOTONIC)
    return f"{clock}\n{_DECLARED_PAUSE}"


def compiled(text: str, *, optimize: bool = True) -> Callable[[str], int]:
    """Compile LLVM IR; return a function from a name to an address.

    Parameters
    ----------
    text : str
        The module, without a target.
    optimize : bool, default True
        False: a tenth of the time, for code that mostly waits.
    """
    with global_compiler_lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        cpu = processor()
        level = 2 if optimize else 0
        machine = target.create_target_machine(
            cpu=cpu.name, features=cpu.features, opt=level, jit=True
        )
        module = llvm.parse_assembly(f'target triple = "{target.triple}"\n{text}')
        module.verify()
        if optimize:
            passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
            passes.getModulePassManager().run(module, passes)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _kept.append(engine)
    found: Callable[[str], int] = engine.get_function_address
    return found


def raise_kernel_error(code: int, error: int) -> None:
    """Raise the exception of a kernel.

    Parameters
    ----------
    code : int
        The status that the kernel returned.
    error : int
        Numba's description of the exception.
    """
    _raiser()(code, error)


@functools.cache
def _raiser() -> Callable[[int, int], int]:
    """Return a native function that raises as Numba's wrapper of a function does."""
    from numba.core.registry import cpu_target

    with global_compiler_lock:
        context: Any = cpu_target.target_context
        library = context.codegen().create_library("nbrt.raise")
        module = library.create_ir_module("nbrt.raise")
        convention = context.call_conv
        number = ir.IntType(32)
        error = convention.get_function_type(types.none, ()).args[1].pointee
        function = ir.Function(module, ir.FunctionType(number, [number, error]), "nbrt_raise")
        builder = ir.IRBuilder(function.append_basic_block())
        status = convention._get_return_status(builder, *function.args)
        convention.raise_error(builder, context.get_python_api(builder), status)
        builder.ret(number(0))
        library.add_ir_module(module)
        library.finalize()
        address = library.get_pointer_to_function(function.name)
    _kept.append(library)
    raising: Callable[[int, int], int] = ctypes.PYFUNCTYPE(
        ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
    )(address)
    return raising
