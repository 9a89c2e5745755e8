"""Atomic operations.

`atom.add.f32` on global memory flushes subnormal operands and results, on shared memory it does
not, as the ISA says of current implementations. Operations of f16 and bf16 are compare-and-swap
loops; f16x2 and bf16x2 change both halves at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.floats import canonical, flush, narrow, widen
from simulated_cuda.ptx.instructions.memory import memory_space
from simulated_cuda.ptx.instructions.moves import is_shared
from simulated_cuda.ptx.instructions.registry import PACKED, translates
from simulated_cuda.ptx.syntax import Vector
from simulated_cuda.ptx.types import BITS, FLOAT_TYPES, PACKED_TYPES, is_signed

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_SCOPES = ("cta", "cluster", "gpu", "sys")
_OPERATIONS = ("add", "exch", "cas", "min", "max", "and", "or", "xor", "inc", "dec")
_MODIFIERS = (*_SPACES, *_ORDERS, *_SCOPES, *_OPERATIONS, "noftz", "ftz", "rn")
_TYPES = ("b16", "b32", "b64", "b128", "u32", "s32", "u64", "s64", "f32", "f64", *PACKED)
_INTEGER = {"add": "add", "exch": "xchg", "and": "and", "or": "or", "xor": "xor"}


@translates("atom", modifiers=_MODIFIERS, types=_TYPES)
def _atomic(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.write(operands[0], _apply(f, operands[1:], form), f"b{BITS[form.type]}")


@translates("red", modifiers=(*_MODIFIERS, "async"), types=_TYPES)
def _reduce(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if "async" in form.flags or isinstance(operands[1], Vector):
        raise f.error("unsupported form")
    _apply(f, operands, form)


def _apply(f: FunctionBuilder, operands: list[Operand], form: Form) -> str:
    """Write the operation on ``[address], values...`` and return the bits of the old value."""
    kind, width = form.type, BITS[form.type]
    space = memory_space(form)
    pointer = f.pointer(operands[0], space, width // 8)
    order = _ORDERS[form.choose(_ORDERS, "relaxed")]
    operation = form.choose(_OPERATIONS)
    if operation == "cas":
        return _compare_and_swap(f, pointer, operands, width, order)
    if operation == "exch":
        value = f.read_bits(operands[1], width)
        return f.value(f"atomicrmw xchg ptr {pointer}, i{width} {value} {order}")
    if kind in PACKED:
        return _narrow_loop(f, pointer, operands[1], form, operation)
    value = f.read(operands[1], kind)
    if kind == "f32" and operation == "add":
        return _add_single(f, pointer, value, space, order)
    if kind == "f64" and operation == "add":
        old = f.value(f"atomicrmw fadd ptr {pointer}, double {value} {order}")
        return f.value(f"bitcast double {old} to i64")
    name = _integer_operation(f, operation, kind)
    return f.value(f"atomicrmw {name} ptr {pointer}, i{width} {value} {order}")


def _integer_operation(f: FunctionBuilder, operation: str, kind: str) -> str:
    if kind in FLOAT_TYPES:
        raise f.error(f"unsupported operation .{operation} of this type")
    if operation in ("inc", "dec"):
        return f"u{operation}_wrap"
    if operation in ("min", "max"):
        return operation if is_signed(kind) else f"u{operation}"
    return _INTEGER[operation]


def _compare_and_swap(
    f: FunctionBuilder, pointer: str, operands: list[Operand], width: int, order: str
) -> str:
    expected, new = (f.read_bits(operand, width) for operand in operands[1:3])
    failure = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
    kind = f"i{width}"
    pair = f.value(f"cmpxchg ptr {pointer}, {kind} {expected}, {kind} {new} {order} {failure}")
    return f.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")


def _add_single(f: FunctionBuilder, pointer: str, value: str, space: str | None, order: str) -> str:
    if space == "shared":
        return _loop(f, pointer, "i32", lambda bits: _sum_single(f, bits, value, "false"))
    if space == "global":
        flushes = "true"
    else:
        address = f.value(f"ptrtoint ptr {pointer} to i64")
        flushes = f.value(f"xor i1 {is_shared(f, address)}, true")
    return _loop(f, pointer, "i32", lambda bits: _sum_single(f, bits, value, flushes))


def _sum_single(f: FunctionBuilder, bits: str, value: str, flushes: str) -> str:
    old = f.value(f"bitcast i32 {bits} to float")
    total = f.value(f"fadd float {old}, {value}")
    if flushes != "false":
        flushed = flush(f, f.value(f"fadd float {flush(f, old)}, {flush(f, value)}"))
        total = f.value(f"select i1 {flushes}, float {flushed}, float {total}")
    return f.value(f"bitcast float {canonical(f, total)} to i32")


def _narrow_loop(
    f: FunctionBuilder, pointer: str, operand: Operand, form: Form, operation: str
) -> str:
    kind = PACKED_TYPES.get(form.type, form.type)
    width = BITS[form.type]
    value = f.read_bits(operand, width)

    def element(old: str, new: str) -> str:
        a, b = widen(f, old, kind), widen(f, new, kind)
        if operation == "add":
            result = f.value(f"fadd double {a}, {b}")
        elif operation in ("min", "max"):
            result = f.intrinsic(f"{operation}imumnum", "double", a, b)
        else:
            raise f.error(f"unsupported operation .{operation} of this type")
        return narrow(f, result, kind)

    def compute(old: str) -> str:
        if width == 16:
            return element(old, value)
        low = element(_half(f, old, 0), _half(f, value, 0))
        high = element(_half(f, old, 16), _half(f, value, 16))
        wide = f.value(f"shl i32 {f.value(f'zext i16 {high} to i32')}, 16")
        return f.value(f"or i32 {wide}, {f.value(f'zext i16 {low} to i32')}")

    return _loop(f, pointer, f"i{width}", compute)


def _half(f: FunctionBuilder, value: str, shift: int) -> str:
    return f.value(f"trunc i32 {f.value(f'lshr i32 {value}, {shift}')} to i16")


def _loop(f: FunctionBuilder, pointer: str, kind: str, compute: Callable[[str], str]) -> str:
    """Replace the value at a pointer by a function of it, and return the old one."""
    old_slot = f.entry(f"alloca {kind}")
    size = int(kind[1:]) // 8
    first = f.value(f"load atomic {kind}, ptr {pointer} monotonic, align {size}")
    f.emit(f"store {kind} {first}, ptr {old_slot}")
    retry, done = f.fresh("retry"), f.fresh("done")
    f.place(retry)
    old = f.value(f"load {kind}, ptr {old_slot}")
    new = compute(old)
    pair = f.value(f"cmpxchg ptr {pointer}, {kind} {old}, {kind} {new} acq_rel acquire")
    seen = f.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    f.emit(f"store {kind} {seen}, ptr {old_slot}")
    success = f.value(f"extractvalue {{ {kind}, i1 }} {pair}, 1")
    f.branch(success, done, retry)
    f.place(done)
    return f.value(f"load {kind}, ptr {old_slot}")
