"""Read special registers such as %tid.x."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.thread_layout import LANE, REGISTERS, WIDE_REGISTERS

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder

__all__ = ["read_special"]

_CONSTANTS = {
    "WARP_SZ": 32,
    "%warpsize": 32,
    "%is_explicit_cluster": 0,
    **{f"%cluster_ctaid.{axis}": 0 for axis in "xyz"},
    **{f"%cluster_nctaid.{axis}": 1 for axis in "xyz"},
    "%cluster_ctarank": 0,
    "%cluster_nctarank": 1,
    **{f"%tid.{axis}": 0 for axis in "w"},
    **{f"%ntid.{axis}": 0 for axis in "w"},
    **{f"%ctaid.{axis}": 0 for axis in "w"},
    **{f"%nctaid.{axis}": 0 for axis in "w"},
    "%current_graph_exec": 0,
    **{f"%envreg{i}": 0 for i in (0, *range(3, 32))},
}
"""Registers with one value in every thread. A cluster has one block."""


def read_special(builder: FunctionBuilder, name: str) -> tuple[str, int] | None:
    """Return the value of a special register and its width, or None for another name.

    %envreg1 and %envreg2 hold the address of the workspace of a cooperative grid. The clocks count
    nanoseconds: %clock, %clock64 and %globaltimer are the same steady clock.
    """
    if name in REGISTERS:
        return builder.thread_field(REGISTERS[name], "i32"), 32
    if name in WIDE_REGISTERS:
        return builder.thread_field(WIDE_REGISTERS[name], "i64"), 64
    if name in _CONSTANTS:
        return str(_CONSTANTS[name]), 64 if name == "%current_graph_exec" else 32
    if name in ("%clock64", "%globaltimer", "%clock", "%globaltimer_lo"):
        return builder.help("sim.clock", "i64"), 64
    if name in ("%clock_hi", "%globaltimer_hi"):
        clock = builder.help("sim.clock", "i64")
        return builder.value(f"lshr i64 {clock}, 32"), 64
    if name in ("%envreg1", "%envreg2"):
        address = builder.call("sim_grid_workspace", "i64", ("ptr", "%thread"))
        shifted = builder.value(f"lshr i64 {address}, {32 if name == '%envreg1' else 0}")
        return builder.resize(shifted, 64, 32, signed=False), 32
    if name == "%nwarpid":
        return _warp_count(builder), 32
    if name.startswith("%lanemask_"):
        return _lane_mask(builder, name[10:]), 32
    return None


def _warp_count(builder: FunctionBuilder) -> str:
    x, y, z = (builder.thread_field(REGISTERS[f"%ntid.{axis}"], "i32") for axis in "xyz")
    plane = builder.value(f"mul i32 {x}, {y}")
    threads = builder.value(f"mul i32 {plane}, {z}")
    rounded = builder.value(f"add i32 {threads}, 31")
    return builder.value(f"lshr i32 {rounded}, 5")


def _lane_mask(builder: FunctionBuilder, relation: str) -> str:
    lane = builder.thread_field(LANE, "i32")
    equal = builder.value(f"shl i32 1, {lane}")
    if relation == "eq":
        return equal
    less = builder.value(f"sub i32 {equal}, 1")
    if relation == "lt":
        return less
    if relation == "ge":
        return builder.value(f"xor i32 {less}, -1")
    less_equal = builder.value(f"or i32 {equal}, {less}")
    if relation == "le":
        return less_equal
    if relation == "gt":
        return builder.value(f"xor i32 {less_equal}, -1")
    raise builder.error(f"unknown register %lanemask_{relation}")
