"""Branches, returns, traps and hints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import BranchTargets, Label, Name

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []


def _yield(f: FunctionBuilder) -> None:
    if f.is_waiting_branch():
        f.call("sim_yield", "void", ("ptr", "%thread"))


def _label(f: FunctionBuilder, name: str) -> str:
    found = f.find(name)
    if not isinstance(found, Label):
        raise f.error(f"{name} is not a label")
    return f"L{found.index}"


@translates("bra", modifiers=("uni",))
def _branch(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    target = operands[0]
    if not isinstance(target, Name):
        raise f.error("expected a label")
    _yield(f)
    f.end_block(f"br label %{_label(f, target.text)}")


@translates("brx", modifiers=("idx", "uni"))
def _indexed_branch(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Branch to a label of a list; an index outside the list traps (the ISA leaves it open)."""
    index = f.read_bits(operands[0], 32)
    targets = operands[1]
    found = f.find(targets.text) if isinstance(targets, Name) else None
    if not isinstance(found, BranchTargets):
        raise f.error("expected a list of labels")
    _yield(f)
    outside = f.fresh("outside")
    cases = " ".join(
        f"i32 {number}, label %{_label(f, label)}" for number, label in enumerate(found.labels)
    )
    f.end_block(f"switch i32 {index}, label %{outside} [ {cases} ]")
    f.place(outside)
    _trap(f, [], form)


@translates("ret", modifiers=("uni",))
def _return(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.end_block("ret void")


@translates("exit")
def _exit(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if f.function.is_kernel:
        f.end_block("ret void")
    else:
        f.call("sim_exit", "void", ("ptr", "%thread"))
        f.end_block("unreachable")


@translates("trap", "brkpt")
def _trap(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Abort the kernel; a breakpoint does, too, since there is no debugger."""
    f.call("sim_trap", "void", ("ptr", "%thread"))
    f.end_block("unreachable")


@translates("nanosleep", types=("u32",))
def _sleep(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.call("sim_yield", "void", ("ptr", "%thread"))


@translates("griddepcontrol", modifiers=("launch_dependents", "wait"))
@translates("pmevent", modifiers=("mask",))
@translates("setmaxnreg", modifiers=("inc", "dec", "sync", "aligned"), types=("u32",))
def _ignore(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Do nothing: kernels of a stream run one after the other."""
