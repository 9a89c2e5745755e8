"""Approximate functions: exact to about 40 bits, then rounded; see approximations.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.floats import (
    map_narrow,
    read_float,
    write_float,
)
from simulated_cuda.ptx.instructions.registry import PACKED, translates

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []


@translates("ex2", "tanh", modifiers=("approx", "ftz"), types=("f32", *PACKED))
@translates("lg2", "sin", "cos", modifiers=("approx", "ftz"), types=("f32",))
def _function(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.approximates = True
    name = f"sim.{form.opcode}"
    if form.type in PACKED:
        flags = form.flags - {"ftz"}  # the subnormal operands of ex2 and tanh of bf16 all give 1
        narrow_form = type(form)(form.opcode, form.modifiers, form.types, flags)
        map_narrow(f, operands, narrow_form, lambda x: f.help(name, "double", ("double", x)))
        return
    value = f.value(f"fpext float {read_float(f, operands[1], form)} to double")
    result = f.value(f"fptrunc double {f.help(name, 'double', ('double', value))} to float")
    write_float(f, operands[0], result, form)


@translates("rsqrt", modifiers=("approx", "ftz"), types=("f32", "f64"))
def _inverse_square_root(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.approximates = True
    value = read_float(f, operands[1], form)
    if form.type == "f32":
        value = f.value(f"fpext float {value} to double")
    root = f.intrinsic("sqrt", "double", value)
    result = f.value(f"fdiv double 1.0, {root}")
    if form.type == "f32":
        result = f.value(f"fptrunc double {result} to float")
    write_float(f, operands[0], result, form)
