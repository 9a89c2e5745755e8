"""Words of memory, and what all of the shadow runtime does with them."""

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

__all__ = ["block_of", "load", "native", "report", "row_of", "store", "take_up", "who_of"]


@functools.cache
def _stamp() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class _StampedCache(FunctionCache):
    """Numba's cache on disk, which by itself looks at one file only, not at what it imports."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), _stamp())


def native(function: Callable[..., int | None]) -> Any:
    """Compile a function of words for native callers, or take its code from disk."""
    shape = inspect.signature(function)
    result = types.int64 if shape.return_annotation == "int" else types.void
    signature = result(*[types.int64] * len(shape.parameters))
    made = CFunc(function, (signature.args, signature.return_type), {}, {})
    made._cache = _StampedCache(function)
    made.compile()
    return made


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
    s: int, kind: int, site: int, who: int, when: int, a: int, b: int, c: int, d: int
) -> None:
    """Write a report down, unless there is one of the same kind and sites."""
    count = load(s, at.REPORT_COUNT)
    other = who & 0xFFFF
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
    store(s, row + 4, who)
    store(s, row + 5, when)
    store(s, row + 6, a)
    store(s, row + 7, b)
    store(s, row + 8, c)
    store(s, row + 9, d)
    store(s, at.REPORT_COUNT, count + 1)


@njit
def row_of(s: int, thread: int) -> int:
    """Give the row of a thread of the block that runs."""
    return at.THREADS + (int(load(s, at.SEAT)) + thread) * at.THREAD_WORDS


@njit
def block_of(s: int, block: int) -> int:
    """Give the address of a block's words; blocks count from 1."""
    return int(load(s, at.BLOCKS)) + (block - 1) * at.BLOCK_WORDS * 8


@njit
def take_up(s: int, block: int, thread: int) -> None:
    """Say which thread runs from here on."""
    threads = load(s, at.BLOCK_THREADS)
    store(s, at.BLOCK, block)
    store(s, at.THREAD, thread)
    # One block has the table for itself, unless all are under way at once.
    alone = load(s, at.SEATS) == threads
    store(s, at.SEAT, 0 if alone else (block - 1) * threads)


@njit
def who_of(thread: int, block: int, atomic: int, site: int) -> int:
    """Pack who has accessed something, and where: see `layout`."""
    return (block << 32) | (thread << 17) | (atomic << 16) | site
