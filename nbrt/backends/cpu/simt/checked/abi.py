"""The binary interface of the shadow runtime: functions of words, and the words of its state."""

from __future__ import annotations

import functools
import hashlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import njit
from numba.core import types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.checked import layout as at

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FUNCTIONS",
    "block_of",
    "load",
    "native",
    "pack_accessor",
    "report",
    "row_of",
    "set_current",
    "store",
]


FUNCTIONS: dict[str, Any] = {}
"""Name -> function that `native` has compiled."""


@functools.cache
def _stamp() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class _StampedCache(FunctionCache):
    """Numba's cache on disk, invalidated also by changes of modules that a file imports."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), _stamp())


def native(function: Callable[..., int | None]) -> Any:
    """Compile a function of words for native callers, or load its code from disk."""
    shape = inspect.signature(function)
    result = types.int64 if shape.return_annotation == "int" else types.void
    signature = result(*[types.int64] * len(shape.parameters))
    compiled = CFunc(function, (signature.args, signature.return_type), {}, {})
    compiled._cache = _StampedCache(function)
    compiled.compile()
    FUNCTIONS[function.__name__] = compiled
    return compiled


@intrinsic
def load(_typingctx: Any, address: Any, index: Any) -> Any:
    """Read word `index` from `address`."""

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(base, [args[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store(_typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Write word `index` from `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[2], builder.gep(base, [args[1]]))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


@njit
def report(
    s: int, kind: int, site: int, accessor: int, epoch: int, a: int, b: int, c: int, d: int
) -> None:
    """Add a report, unless there is one of the same kind and sites."""
    count = load(s, at.REPORT_COUNT)
    other = accessor & 0xFFFF
    for i in range(count):
        row = at.REPORTS + i * at.REPORT
        same = load(s, row) == kind and load(s, row + 1) == site
        if same and (load(s, row + 4) & 0xFFFF) == other:
            return
    if count >= at.MAX_REPORTS:
        return
    row = at.REPORTS + count * at.REPORT
    store(s, row, kind)
    store(s, row + 1, site)
    store(s, row + 2, load(s, at.THREAD))
    store(s, row + 3, load(s, at.BLOCK) - 1)
    store(s, row + 4, accessor)
    store(s, row + 5, epoch)
    store(s, row + 6, a)
    store(s, row + 7, b)
    store(s, row + 8, c)
    store(s, row + 9, d)
    store(s, at.REPORT_COUNT, count + 1)


@njit
def row_of(s: int, thread: int) -> int:
    """Return the row of a thread of the current block."""
    return at.THREADS + (int(load(s, at.FIRST_ROW)) + thread) * at.THREAD_WORDS


@njit
def block_of(s: int, block: int) -> int:
    """Return the address of a block's words; blocks count from 1."""
    return int(load(s, at.BLOCKS)) + (block - 1) * at.BLOCK_WORDS * 8


@njit
def set_current(s: int, block: int, thread: int) -> None:
    """Set the current thread."""
    threads = load(s, at.BLOCK_THREADS)
    store(s, at.BLOCK, block)
    store(s, at.THREAD, thread)
    # One block uses the whole table, unless all blocks are resident together.
    alone = load(s, at.ROWS) == threads
    store(s, at.FIRST_ROW, 0 if alone else (block - 1) * threads)


@njit
def pack_accessor(thread: int, block: int, atomic: int, site: int) -> int:
    """Return an accessor in one word: see `layout`."""
    return (block << 32) | (thread << 17) | (atomic << 16) | site
