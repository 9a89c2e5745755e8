"""LLVM definitions of global and constant variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.literals import integer_constant
from simulated_cuda.ptx.syntax import Immediate
from simulated_cuda.ptx.types import BITS, FLOAT_TYPES

if TYPE_CHECKING:
    from simulated_cuda.ptx.module import ModuleBuilder
    from simulated_cuda.ptx.syntax import Initialiser, Variable

__all__ = ["definition"]


def definition(variable: Variable, module: ModuleBuilder) -> str:
    """Return the definition of a variable: bytes, with 64-bit words where addresses stand."""
    if variable.linkage == "extern":
        raise PtxError(f"unresolved extern variable {variable.name}", variable.line)
    symbol = module.variable_symbol(variable)
    alignment = max(variable.alignment, 16)
    size = max(variable.size, 1)
    if not variable.values or not any(v.symbol or v.value for v in variable.values):
        return f"{symbol} = global [{size} x i8] zeroinitializer, align {alignment}"
    parts: list[str] = []
    data = bytearray()
    for value, width in _words(variable):
        if not value.symbol:
            data += _number(value, variable).to_bytes(width, "little")
            continue
        if width != 8:
            raise PtxError(f"{variable.name}: an address of {width} bytes", variable.line)
        _flush(parts, data)
        address = _address(value, variable, module)
        parts.append(f"i64 {address}")
    total = sum(width for _, width in _words(variable))
    data += bytes(size - total)
    _flush(parts, data)
    types = ", ".join(part.partition(' c"')[0] if part[0] == "[" else "i64" for part in parts)
    return f"{symbol} = global <{{ {types} }}> <{{ {', '.join(parts)} }}>, align {alignment}"


def _number(value: Initialiser, variable: Variable) -> int:
    """Return the bits of a number in the type of the variable."""
    width = BITS[variable.type]
    if variable.type in FLOAT_TYPES and value.kind == "int" and value.value:
        raise PtxError(f"{variable.name}: an integer initialises a float", variable.line)
    return int(integer_constant(Immediate(value.kind, value.value), width))


def _words(variable: Variable) -> list[tuple[Initialiser, int]]:
    """Return the values with their sizes; masked bytes of one address become one word."""
    width = BITS[variable.type] // 8
    found: list[tuple[Initialiser, int]] = []
    pending = 0
    for value in variable.values:
        if not value.mask:
            found.append((value, width))
            continue
        if value.mask == 0xFF:
            found.append((value._replace(mask=0), 8))
            pending = 1
        elif pending and value.mask == 0xFF << 8 * pending:
            pending += 1
        else:
            raise PtxError(f"{variable.name}: unsupported mask of an address", variable.line)
    return found


def _address(value: Initialiser, variable: Variable, module: ModuleBuilder) -> str:
    name = value.symbol
    program = module.program
    if program.aliases.get(name, name) in program.functions:
        module.take_address(program.aliases.get(name, name))
        symbol = module.function_symbol(name)
    elif name in program.variables and program.variables[name].space != "shared":
        symbol = module.variable_symbol(program.variables[name])
    else:
        raise PtxError(f"{variable.name}: unknown symbol {name}", variable.line)
    address = f"ptrtoint (ptr {symbol} to i64)"
    return f"add (i64 {address}, i64 {value.value})" if value.value else address


def _flush(parts: list[str], data: bytearray) -> None:
    if data:
        text = "".join(f"\\{byte:02X}" for byte in data)
        parts.append(f'[{len(data)} x i8] c"{text}"')
        data.clear()
