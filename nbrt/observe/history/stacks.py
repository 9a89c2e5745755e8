"""`StackTable`: the stack of the running call in half a microsecond, each different one kept once.

Walking the frames in Python costs 0.1 microseconds for each, which is too much for a stack of
twenty under every allocation. So a few lines of LLVM, made of the functions of Python's C
interface, walk them and make one number of what they see: addresses of code objects, and
instructions in them. A stack that was not seen before is then walked in Python. The table keeps its
code objects alive, so an address in a known number still means what it meant.
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

__all__ = ["MAX_FRAMES", "StackTable", "stack_number"]

MAX_FRAMES = 48
"""Calls that are looked at, from the innermost on; a notebook has about 15 under its cells."""

_MAX_STACKS = 1 << 16


class StackTable:
    """The stacks that were seen.

    An `Allocation` has the `CallSite` of its making as its attribute `site` while it is watched.
    Watchers may share a table, and may put an equal site in place of another.

    Attributes
    ----------
    number : callable
        Makes one number of a frame and its callers.
    sites : dict of int to CallSite
        The stacks by their numbers.

    Examples
    --------
    >>> table = StackTable()
    >>> sites = [table.here() for _ in range(3)]
    >>> sites[0] is sites[1] is sites[2], len(table)
    (True, 1)
    """

    def __init__(self) -> None:
        self.sites: dict[int, CallSite] = {}
        # In a notebook the walk ends where cells are run: what runs them is most of the stack.
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        self._floor: CodeType | None = None if shell is None else shell.run_code.__code__
        self.number = stack_number(0 if self._floor is None else id(self._floor))

    def __len__(self) -> int:
        return len(self.sites)

    def here(self, depth: int = 0) -> CallSite:
        """Return the stack of the caller, of at most `MAX_FRAMES` calls, leaving out `depth` more.

        Those left out cost nothing: Python makes an object for each frame that is looked at. Two
        different stacks are taken for one with a chance of 2^-64.
        """
        frame = _getframe(depth + 1)
        number = self.number(frame)
        return self.sites.get(number) or self.add(number, frame)

    def add(self, number: int, frame: FrameType) -> CallSite:
        """Keep the stack of a running call under its number."""
        if len(self.sites) >= _MAX_STACKS:
            self.sites.clear()  # those in use are kept by their users
        site = CallSite.of(frame, MAX_FRAMES, self._floor).number_cells()
        return self.sites.setdefault(number, site)


class _MethodDef(ctypes.Structure):
    """``PyMethodDef`` of Python's C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O = 0x8
"""The flag of a C function of one argument."""

# The multiplications and shifts are those of splitmix64's finalizer (Steele, Lea, Flood 2014).
_WALK = """
declare ptr @PyFrame_GetBack(ptr)
declare ptr @PyFrame_GetCode(ptr)
declare i32 @PyFrame_GetLasti(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyLong_FromUnsignedLongLong(i64)

define ptr @number(ptr %self, ptr %innermost) {{
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
  %is_full = icmp eq i64 %seen, {most}
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
def stack_number(floor: int) -> Callable[[FrameType], int]:
    """Return the function that tells stacks apart: it makes one number of a frame and its callers.

    Parameters
    ----------
    floor : int
        Address of the code object that the walk ends before; 0 for none.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    text = _WALK.format(
        floor=floor, most=MAX_FRAMES, first=0xBF58476D1CE4E5B9, second=0x94D049BB133111EB
    )
    machine = binding.Target.from_default_triple().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), machine)
    engine.finalize_object()
    method = _MethodDef(b"stack_number", engine.get_function_address("number"), _METH_O, None)
    _kept.append((engine, method))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = (ctypes.POINTER(_MethodDef), ctypes.c_void_p, ctypes.c_void_p)
    make.restype = ctypes.py_object
    made: Callable[[FrameType], int] = make(method, None, None)
    return made


_kept: list[object] = []
"""What the functions live in, for as long as the process does."""
