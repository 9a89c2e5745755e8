"""Machine code of replays: the loop over the instructions, and calls of kernels."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.block_scheduler import LaunchRecord
from nbrt.backends.cpu.graphs.layout import ChainTable, Image, Operation, Status, ThreadState
from nbrt.backends.cpu.native_code import compiled, offsets, template_names

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Runners", "runners", "trampoline"]


class Runners(NamedTuple):
    """Native functions that run a program; they release the GIL and return a `Status`.

    Attributes
    ----------
    run : callable
        Takes the addresses of the `Image` and of the `ThreadState`, and a range of instructions.
    run_chains : callable
        Takes the addresses of the `Image`, the `ThreadState` and the `ChainTable`.
    """

    run: Callable[[int, int, int, int], int]
    run_chains: Callable[[int, int, int], int]


@functools.cache
def runners() -> Runners:
    """Return the native functions, compiled on the first call."""
    names: dict[str, object] = {each.name: each.value for each in Operation}
    names |= {f"{each.name}_STATUS": each.value for each in Status}
    names |= template_names() | offsets(ThreadState, ChainTable, Image)
    names |= offsets(LaunchRecord, prefix="record_")
    folder = Path(__file__).parent
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("replay.ll", "shared.ll")]
    source = Template("\n".join(parts))
    find = compiled(source.substitute(names))
    address, number = ctypes.c_void_p, ctypes.c_int64
    # These functions may return with an exception set, as Python's own do.
    run = ctypes.PYFUNCTYPE(number, address, address, number, number)
    run_chains = ctypes.PYFUNCTYPE(number, address, address, address)
    return Runners(run(find("nbrt_graph_run")), run_chains(find("nbrt_graph_run_chains")))


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
    return compiled(text)("nbrt_graph_call")
