"""Barriers and fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import Immediate

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_REDUCTIONS = {"popc": 0, "and": 1, "or": 2}
_MODIFIERS = ("sync", "arrive", "red", "aligned", "cta", "warp", *_REDUCTIONS)


@translates("bar", "barrier", modifiers=(*_MODIFIERS, "u32", "pred"))
def _barrier(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.waits = True
    thread = ("ptr", "%thread")
    if "warp" in form.flags:
        f.call("sim_warp_sync", "void", thread, ("i32", f.read_bits(operands[0], 32)))
        return
    if "red" in form.flags:
        _reduce(f, operands, form)
        return
    count: Operand = operands[1] if len(operands) > 1 else Immediate("int", 0)
    arguments = ("i32", f.read_bits(operands[0], 32)), ("i32", f.read_bits(count, 32))
    name = "sim_barrier_arrive" if "arrive" in form.flags else "sim_barrier"
    f.call(name, "void", thread, *arguments)


def _reduce(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    count: Operand = operands[2] if len(operands) > 3 else Immediate("int", 0)
    operation = form.choose(_REDUCTIONS)
    predicate = f.value(f"zext i1 {f.read(operands[-1], 'pred')} to i32")
    result = f.call(
        "sim_barrier_reduce",
        "i32",
        ("ptr", "%thread"),
        ("i32", f.read_bits(operands[1], 32)),
        ("i32", f.read_bits(count, 32)),
        ("i32", str(_REDUCTIONS[operation])),
        ("i32", predicate),
    )
    if operation == "popc":
        f.write(operands[0], result, "u32")
    else:
        f.write(operands[0], f.value(f"icmp ne i32 {result}, 0"), "pred")


_SCOPES = ("cta", "cluster", "gpu", "gl", "sys")


@translates("membar", "fence", modifiers=(*_SCOPES, "sc", "acq_rel", "acquire", "release"))
def _fence(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    order = form.choose(("acq_rel", "acquire", "release"), "seq_cst")
    f.emit(f"fence {order}")
