"""Loads, stores, prefetches and copies.

Ordinary accesses are ordinary loads and stores. Volatile accesses and those with .relaxed, .acquire
or .release are LLVM atomics of the same order. Cache operators and hints change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import Vector
from simulated_cuda.ptx.types import BITS

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__ = ["memory_space"]

_SPACES = ("const", "global", "local", "shared", "param", "shared::cta", "shared::cluster")
_SPACES = (*_SPACES, "param::entry", "param::func")
_CACHE = (
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"),
    *(f"L{k}::{hint}" for k in (1, 2) for hint in ("evict_normal", "evict_unchanged")),
    *(f"L{k}::{hint}" for k in (1, 2) for hint in ("evict_first", "evict_last", "no_allocate")),
    *("L2::cache_hint", "L2::64B", "L2::128B", "L2::256B", "unified"),
)
_ORDER = (
    "weak",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "mmio",
    "cta",
    "cluster",
    "gpu",
    "sys",
)
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_TYPES = tuple(
    name for name in BITS if name not in ("pred", "f16", "bf16", "tf32") and "x2" not in name
)


def memory_space(form: Form) -> str | None:
    """Return the state space of an access, or None for generic addresses."""
    return form.choose(_SPACES).partition("::")[0] or None


def _atomic_order(form: Form, default: str) -> str:
    if "volatile" in form.flags:
        return "monotonic"
    return {"relaxed": "monotonic", "acquire": "acquire", "release": "release"}.get(
        form.choose(("relaxed", "acquire", "release")), default
    )


def _element_pointer(f: FunctionBuilder, pointer: str, index: int, width: int) -> str:
    if not index:
        return pointer
    return f.value(f"getelementptr i8, ptr {pointer}, i64 {index * width // 8}")


@translates("ld", "ldu", modifiers=(*_SPACES, *_CACHE, *_ORDER, *_VECTORS), types=_TYPES)
def _load(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind, width = form.type, BITS[form.type]
    count = _VECTORS.get(form.choose(_VECTORS), 1)
    space = memory_space(form)
    size = width // 8
    pointer = f.pointer(operands[1], space, size * count)
    targets = operands[0].elements if isinstance(operands[0], Vector) else (operands[0],)
    if len(targets) != count:
        raise f.error("the vector has the wrong number of elements")
    order = _atomic_order(form, "")
    alignment = 1 if space in ("param", "local") else size
    values = []
    for index in range(count):
        place = _element_pointer(f, pointer, index, width)
        if order and width <= 64:
            text = f"load atomic volatile i{width}, ptr {place} {order}, align {size}"
        else:
            text = f"load i{width}, ptr {place}, align {alignment}"
        values.append(f.value(text))
    for target, value in zip(targets, values, strict=True):
        f.write(target, value, f"{'s' if kind[0] == 's' else 'b'}{width}")


@translates("st", modifiers=(*_SPACES, *_CACHE, *_ORDER, *_VECTORS), types=_TYPES)
def _store(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    width = BITS[form.type]
    count = _VECTORS.get(form.choose(_VECTORS), 1)
    space = memory_space(form)
    size = width // 8
    pointer = f.pointer(operands[0], space, size * count)
    sources = operands[1].elements if isinstance(operands[1], Vector) else (operands[1],)
    if len(sources) != count:
        raise f.error("the vector has the wrong number of elements")
    order = _atomic_order(form, "")
    alignment = 1 if space in ("param", "local") else size
    for index, source in enumerate(sources):
        value = f.read(source, form.type)
        kind = f"i{width}"
        if form.type in ("f32", "f64"):
            kind = "float" if width == 32 else "double"
        place = _element_pointer(f, pointer, index, width)
        if order and width <= 64:
            f.emit(f"store atomic volatile {kind} {value}, ptr {place} {order}, align {size}")
        else:
            f.emit(f"store {kind} {value}, ptr {place}, align {alignment}")


@translates("prefetch", "prefetchu", modifiers=(*_SPACES, *_CACHE, "L1", "L2", "tensormap"))
@translates("applypriority", "discard", "createpolicy", modifiers=(*_SPACES, *_CACHE, "L2"))
def _ignore(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Do nothing: the instruction changes caches only."""
    if form.opcode in ("discard", "createpolicy"):
        raise f.error("unsupported instruction")
