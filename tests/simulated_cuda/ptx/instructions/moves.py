"""Moves, packing and unpacking, and conversions of addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import Name, Variable, Vector
from simulated_cuda.ptx.thread_layout import TOTAL_SHARED
from simulated_cuda.ptx.types import BITS

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_TYPES = tuple(name for name in BITS if name not in ("b8", "u8", "s8", "tf32", "u16x2", "s16x2"))
_SPACES = ("const", "global", "local", "shared", "shared::cta", "param", "param::entry")
_STACK_REACH = 1 << 19
"""isspacep.local holds for addresses this near to the frame of the function."""


@translates("mov", types=_TYPES)
def _move(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    target, source = operands
    kind = form.type
    if isinstance(target, Vector):
        _unpack(f, target.elements, source, BITS[kind])
    elif isinstance(source, Vector):
        _pack(f, target, source.elements, BITS[kind])
    else:
        f.write(target, f.read(source, kind), kind)


def _unpack(f: FunctionBuilder, targets: tuple[Operand, ...], source: Operand, width: int) -> None:
    part = width // len(targets)
    value = f.read_bits(source, width)
    for index, target in enumerate(targets):
        if isinstance(target, Name) and target.text == "_":
            continue
        shifted = f.value(f"lshr i{width} {value}, {index * part}") if index else value
        f.write(target, f.value(f"trunc i{width} {shifted} to i{part}"), f"b{part}")


def _pack(f: FunctionBuilder, target: Operand, sources: tuple[Operand, ...], width: int) -> None:
    part = width // len(sources)
    result = "0"
    for index, source in enumerate(sources):
        value = f.value(f"zext i{part} {f.read_bits(source, part)} to i{width}")
        if index:
            value = f.value(f"shl i{width} {value}, {index * part}")
        result = f.value(f"or i{width} {result}, {value}")
    f.write(target, result, f"b{width}")


@translates("cvta", modifiers=(*_SPACES, "to"), types=("u64",))
def _convert_address(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Convert between a state space and generic addresses; only .shared has addresses from 0."""
    value = f.read(operands[1], "u64")
    if form.flags & {"shared", "shared::cta"}:
        base = f.value(f"ptrtoint ptr {f.shared_base()} to i64")
        operation = "sub" if "to" in form.flags else "add"
        value = f.value(f"{operation} i64 {value}, {base}")
    f.write(operands[0], value, "u64")


@translates("mapa", modifiers=("shared::cluster",), types=("u32", "u64"))
def _map_address(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Return the same address: a cluster has one block."""
    f.write(operands[0], f.read(operands[1], form.type), form.type)


@translates("isspacep", modifiers=(*_SPACES, "shared::cluster"))
def _is_space(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Test the state space of a generic address; a global address is one of no other space."""
    address = f.read(operands[1], "u64")
    space = form.modifiers[0].partition("::")[0]
    if space == "shared":
        result = is_shared(f, address)
    elif space == "local":
        result = _is_local(f, address)
    elif space == "global":
        either = f.value(f"or i1 {is_shared(f, address)}, {_is_local(f, address)}")
        result = f.value(f"xor i1 {f.value(f'or i1 {either}, {_is_constant(f, address)}')}, true")
    elif space == "const":
        result = _is_constant(f, address)
    else:
        raise f.error(f"unsupported state space .{space}")
    f.write(operands[0], result, "pred")


def is_shared(f: FunctionBuilder, address: str) -> str:
    """Return whether a generic address lies in the shared memory of the block."""
    base = f.value(f"ptrtoint ptr {f.shared_base()} to i64")
    size = f.value(f"zext i32 {f.thread_field(TOTAL_SHARED, 'i32')} to i64")
    return f.value(f"icmp ult i64 {f.value(f'sub i64 {address}, {base}')}, {size}")


def _is_local(f: FunctionBuilder, address: str) -> str:
    name = "llvm.frameaddress.p0"
    f.module.declare(name, f"declare ptr @{name}(i32)")
    frame = f.value(f"ptrtoint ptr {f.value(f'call ptr @{name}(i32 0)')} to i64")
    distance = f.value(f"sub i64 {address}, {frame}")
    shifted = f.value(f"add i64 {distance}, {_STACK_REACH}")
    return f.value(f"icmp ult i64 {shifted}, {2 * _STACK_REACH}")


def _is_constant(f: FunctionBuilder, address: str) -> str:
    result = "false"
    for variable in f.module.program.variables.values():
        if isinstance(variable, Variable) and variable.space == "const":
            start = f.address_of(variable, 0)
            distance = f.value(f"sub i64 {address}, {start}")
            inside = f.value(f"icmp ult i64 {distance}, {variable.size}")
            result = f.value(f"or i1 {result}, {inside}")
    return result
