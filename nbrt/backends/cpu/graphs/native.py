"""Machine code of replays: the loop over the instructions, and calls of kernels."""

from __future__ import annotations

import ctypes
import functools
import sys
import time
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock

from nbrt.backends.cpu.block_scheduler import LaunchRecord
from nbrt.backends.cpu.graphs.layout import (
    HELPER_FAILED,
    ChainTable,
    HelperSlot,
    Image,
    Operation,
    Status,
    ThreadState,
)
from nbrt.backends.cpu.interrupts import STOP
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

__all__ = ["Runners", "raise_kernel_error", "runners", "trampoline"]

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


class Runners(NamedTuple):
    """Native functions that run a program; they release the GIL and return a `Status`.

    Attributes
    ----------
    run : callable
        Takes the addresses of the `Image` and of the `ThreadState`, and a range of instructions.
    run_chains : callable
        Takes the addresses of the `Image`, the `ThreadState` and the `ChainTable`.
    help : callable
        Takes the address of a `HelperSlot`; returns if a kernel fails.
    finish : callable
        Takes the address of that `HelperSlot` and its `offering`.
    """

    run: Callable[[int, int, int, int], int]
    run_chains: Callable[[int, int, int], int]
    help: Callable[[int], int]
    finish: Callable[[int, int], None]


@functools.cache
def runners() -> Runners:
    """Return the native functions, compiled on the first call."""
    posix = sys.platform != "win32"
    platform = _POSIX.format(clock=time.CLOCK_MONOTONIC) if posix else _WINDOWS
    names: dict[str, object] = {each.name: each.value for each in Operation}
    names |= {f"{each.name}_STATUS": each.value for each in Status}
    for structure in (ThreadState, ChainTable, Image, HelperSlot):
        names |= {name: getattr(structure, name).offset for name, _ in structure._fields_}
    names |= {name: getattr(LaunchRecord, name).offset for name in ("stop", "shared")}
    names |= {
        "convention": CALLING_CONVENTION,
        "attend": ATTEND,
        "stopped_code": STOPPED,
        "interrupted_code": INTERRUPTED,
        "none_code": RETURN_NONE,
        "helper_failed_code": HELPER_FAILED,
        "stop_word": STOP,
        "slot_size": ctypes.sizeof(HelperSlot),
        "platform": platform,
        "attend_module": attend_module(""),
    }
    for name in ("total", "chunk", "next", "activity"):
        names[f"record_{name}"] = getattr(LaunchRecord, name).offset
    folder = Path(__file__).parent
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("replay.ll", "shared.ll")]
    source = Template("\n".join(parts))
    find = _compiled(source.substitute(names))
    address, number = ctypes.c_void_p, ctypes.c_int64
    # These functions may return with an exception set, as Python's own do.
    run = ctypes.PYFUNCTYPE(number, address, address, number, number)
    run_chains = ctypes.PYFUNCTYPE(number, address, address, address)
    serve = ctypes.PYFUNCTYPE(number, address)
    finish = ctypes.PYFUNCTYPE(None, address, address)
    return Runners(
        run(find("nbrt_graph_run")),
        run_chains(find("nbrt_graph_run_chains")),
        serve(find("nbrt_graph_help")),
        finish(find("nbrt_graph_finish")),
    )


@functools.cache
def trampoline(slots: tuple[tuple[str, int], ...]) -> int:
    """Return the address of a function that calls kernels with arguments from memory.

    Parameters
    ----------
    slots : tuple of (str, int)
        LLVM type of each flattened argument, without the record, and the bytes from it to the next
        one.

    Returns
    -------
    int
        A function ``i32 (ptr entry, ptr error, i64 record, ptr arguments)``.
    """
    loads, passed, offset = [], [], 0
    for index, (name, nbytes) in enumerate(slots):
        loads.append(f"  %at.{index} = getelementptr i8, ptr %arguments, i64 {offset}")
        loads.append(f"  %value.{index} = load {name}, ptr %at.{index}, align 1")
        passed.append(f", {name} %value.{index}")
        offset += nbytes
    text = "\n".join(
        [
            "define i32 @nbrt_graph_call(ptr %entry, ptr %error, i64 %record, ptr %arguments) {",
            "  %result = alloca ptr",
            *loads,
            f"  %code = call i32 %entry(ptr %result, ptr %error, i64 %record{''.join(passed)})",
            "  ret i32 %code",
            "}",
        ]
    )
    return _compiled(text)("nbrt_graph_call")


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
        library = context.codegen().create_library("nbrt.graphs.raise")
        module = library.create_ir_module("nbrt.graphs.raise")
        convention = context.call_conv
        number = ir.IntType(32)
        error = convention.get_function_type(types.none, ()).args[1].pointee
        function = ir.Function(module, ir.FunctionType(number, [number, error]), "nbrt_graph_raise")
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


_kept: list[object] = []
"""Objects that hold machine code, kept for the life of the process."""


def _compiled(text: str) -> Callable[[str], int]:
    """Compile LLVM IR; return a function from a name to an address."""
    with global_compiler_lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        cpu = processor()
        machine = target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=2, jit=True)
        module = llvm.parse_assembly(f'target triple = "{target.triple}"\n{text}')
        module.verify()
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        passes.getModulePassManager().run(module, passes)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _kept.append(engine)
    found: Callable[[str], int] = engine.get_function_address
    return found
