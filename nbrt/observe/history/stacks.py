"""`StackTable`: records the stack of the running call in half a microsecond, each stack once.

Reading a frame in Python costs 0.1 microseconds: too slow for 20 frames at every allocation.
Therefore a function in LLVM IR walks the frames through Python's C API and hashes the addresses of
the code objects and the instructions in them. Only a new hash leads to a walk in Python. The table
keeps the code objects alive, so their addresses are not reused.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from sys import _getframe
from typing import TYPE_CHECKING

from nbrt._internal.callsite import CallSite

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

__all__ = ["MAX_FRAMES", "StackTable", "stack_hasher"]

MAX_FRAMES = 48
"""Frames of a stack, counted from the innermost; a notebook has about 15 below its cells."""

_MAX_STACKS = 1 << 16


class StackTable:
    """A table of distinct stacks.

    Attributes
    ----------
    hash_stack : callable
        Returns a hash of a frame and its callers.
    sites : dict of int to CallSite
        The stacks by hash.

    Examples
    --------
    >>> table = StackTable()
    >>> sites = [table.here() for _ in range(3)]
    >>> sites[0] is sites[1] is sites[2], len(table)
    (True, 1)
    """

    def __init__(self) -> None:
        self.sites: dict[int, CallSite] = {}
        # In a notebook the walk ends above the function that runs cells.
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        self._floor: CodeType | None = None if shell is None else shell.run_code.__code__
        self.hash_stack = stack_hasher(0 if self._floor is None else id(self._floor))

    def __len__(self) -> int:
        return len(self.sites)

    def here(self, depth: int = 0) -> CallSite:
        """Return the stack of the caller without its `depth` innermost frames.

        At most `MAX_FRAMES` frames. Skipped frames cost nothing, since Python creates no object for
        them. Two different stacks have the same hash with probability 2^-64.
        """
        frame = _getframe(depth + 1)
        key = self.hash_stack(frame)
        return self.sites.get(key) or self.add(key, frame)

    def add(self, key: int, frame: FrameType) -> CallSite:
        """Store the stack of a running call under its hash."""
        if len(self.sites) >= _MAX_STACKS:
            self.sites.clear()  # events and allocations keep the sites in use alive
        site = CallSite.of(frame, MAX_FRAMES, self._floor).number_cells()
        return self.sites.setdefault(key, site)


class _MethodDef(ctypes.Structure):
    """``PyMethodDef`` of Python's C API."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O = 0x8
"""The flag of a C function with one argument."""

# The multiplications and shifts are those of splitmix64's finalizer (Steele, Lea, Flood 2014).
_WALK = """
declare ptr @PyFrame_GetBack(ptr)
declare ptr @PyFrame_GetCode(ptr)
declare i32 @PyFrame_GetLasti(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyLong_FromUnsignedLongLong(i64)

define ptr @hash_stack(ptr %self, ptr %innermost) {{
entry:
  call void @Py_IncRef(ptr %innermost)
  br label %look
look:
  %frame = phi ptr [ %innermost, %entry ], [ %caller, %next ]
  %seen = phi i64 [ 1, %entry ], [ %more, %next ]
  %before = phi i64 [ 0, %entry ], [ %mixed, %next ]
  %code = call ptr @PyFrame_GetCode(ptr %frame)
  call void @Py_DecRef(ptr %code)
  %address = ptrtoint ptr %code to i64
  %is_floor = icmp eq i64 %address, {floor}
  br i1 %is_floor, label %done, label %mix
mix:
  %lasti = call i32 @PyFrame_GetLasti(ptr %frame)
  %instruction = zext i32 %lasti to i64
  %a = xor i64 %before, %address
  %b = mul i64 %a, {first}
  %c = lshr i64 %b, 30
  %d = xor i64 %b, %c
  %e = xor i64 %d, %instruction
  %f = mul i64 %e, {second}
  %g = lshr i64 %f, 31
  %mixed = xor i64 %f, %g
  %is_full = icmp eq i64 %seen, {max_frames}
  br i1 %is_full, label %done, label %climb
climb:
  %caller = call ptr @PyFrame_GetBack(ptr %frame)
  %is_outermost = icmp eq ptr %caller, null
  br i1 %is_outermost, label %done, label %next
next:
  call void @Py_DecRef(ptr %frame)
  %more = add i64 %seen, 1
  br label %look
done:
  %result = phi i64 [ %before, %look ], [ %mixed, %mix ], [ %mixed, %climb ]
  call void @Py_DecRef(ptr %frame)
  %number = call ptr @PyLong_FromUnsignedLongLong(i64 %result)
  ret ptr %number
}}
"""


@cache
def stack_hasher(floor: int) -> Callable[[FrameType], int]:
    """Return a compiled function that hashes a frame and its callers.

    Parameters
    ----------
    floor : int
        Address of the code object at which the walk ends; 0 for none.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    text = _WALK.format(
        floor=floor, max_frames=MAX_FRAMES, first=0xBF58476D1CE4E5B9, second=0x94D049BB133111EB
    )
    machine = binding.Target.from_default_triple().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), machine)
    engine.finalize_object()
    method = _MethodDef(b"stack_hash", engine.get_function_address("hash_stack"), _METH_O, None)
    _code.append((engine, method))
    new_function = ctypes.pythonapi.PyCFunction_NewEx
    new_function.argtypes = (ctypes.POINTER(_MethodDef), ctypes.c_void_p, ctypes.c_void_p)
    new_function.restype = ctypes.py_object
    function: Callable[[FrameType], int] = new_function(method, None, None)
    return function


_code: list[object] = []
"""Keeps the code of the functions until the process ends."""
