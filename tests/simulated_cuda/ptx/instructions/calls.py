"""Calls: of functions of the module, through pointers, and of the functions that CUDA provides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import Name, Parentheses, Prototype, Variable
from simulated_cuda.ptx.types import llvm_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_THREAD = ("ptr", "%thread")


@translates("call", modifiers=("uni",))
def _call(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    rest = list(operands)
    returns: tuple[Operand, ...] = ()
    if isinstance(rest[0], Parentheses):
        returns = rest.pop(0).elements  # type: ignore[union-attr]
    target = rest.pop(0)
    if not isinstance(target, Name):
        raise f.error("expected a function")
    arguments: tuple[Operand, ...] = ()
    if rest and isinstance(rest[0], Parentheses):
        arguments = rest.pop(0).elements  # type: ignore[union-attr]
    functions = f.module.program.functions
    name = f.module.program.aliases.get(target.text, target.text)
    function = functions.get(name)
    if function is not None and function.body is not None:
        signature = (function.returns, function.parameters)
        symbol = f.module.function_symbol(name)
        f.calls.add(name)
    elif name in _PROVIDED:
        _PROVIDED[name](f, [_slot(f, x) for x in returns], [_slot(f, x) for x in arguments])
        return
    elif function is not None:
        raise f.error(f"unresolved extern function {name}")
    else:
        signature = _prototype(f, rest)
        symbol = f.value(f"inttoptr i64 {f.read(target, 'b64')} to ptr")
        f.has_indirect_call = True
    _emit(f, symbol, signature, returns, arguments)


def _prototype(
    f: FunctionBuilder, rest: list[Operand]
) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    found = f.find(rest[0].text) if rest and isinstance(rest[0], Name) else None
    if not isinstance(found, Prototype):
        raise f.error("an indirect call needs a prototype")
    return found.returns, found.parameters


def _emit(
    f: FunctionBuilder,
    symbol: str,
    signature: tuple[tuple[Variable, ...], tuple[Variable, ...]],
    returns: tuple[Operand, ...],
    arguments: tuple[Operand, ...],
) -> None:
    if not signature[0]:
        # numba-cuda declares a result for linked C functions that have none, and ignores it.
        returns = ()
    if len(returns) != len(signature[0]) or len(arguments) != len(signature[1]):
        raise f.error("the call does not match the signature of the function")
    pointers, loads = [], []
    for operand, variable in zip(returns, signature[0], strict=True):
        pointer, is_register = _place(f, operand, variable)
        pointers.append(pointer)
        if is_register:
            loads.append((operand, pointer, variable))
    for operand, variable in zip(arguments, signature[1], strict=True):
        pointer, is_register = _place(f, operand, variable)
        pointers.append(pointer)
        if is_register:
            value = f.read(operand, variable.type)
            f.emit(f"store {llvm_type(variable.type)} {value}, ptr {pointer}")
    passed = ", ".join(["ptr %thread", *(f"ptr {pointer}" for pointer in pointers)])
    f.emit(f"call void {symbol}({passed})")
    for operand, pointer, variable in loads:
        value = f.value(f"load {llvm_type(variable.type)}, ptr {pointer}")
        f.write(operand, value, variable.type)


def _place(f: FunctionBuilder, operand: Operand, variable: Variable) -> tuple[str, bool]:
    """Return the memory of an argument, and whether the operand is a register or a literal."""
    found = f.find(operand.text) if isinstance(operand, Name) else None
    if isinstance(found, Variable) and found.space == "param":
        return f.pointer_to(found), False
    return f.entry(f"alloca {llvm_type(variable.type)}, align 8"), True


def _slot(f: FunctionBuilder, operand: Operand) -> str:
    found = f.find(operand.text) if isinstance(operand, Name) else None
    if not isinstance(found, Variable):
        raise f.error("arguments of this function must be in .param space")
    return f.pointer_to(found)


# ---- functions that CUDA provides ----------------------------------------------------------------


def _load(f: FunctionBuilder, kind: str, pointer: str) -> str:
    return f.value(f"load {kind}, ptr {pointer}, align 1")


def _provide(name: str, result: str, *types: str) -> Callable[..., None]:
    """Return the translation of a call that becomes a call of the driver with the same values."""

    def translate(f: FunctionBuilder, returns: list[str], arguments: list[str]) -> None:
        if len(arguments) < len(types):
            raise f.error("too few arguments")
        values = [
            (kind, _load(f, kind, pointer)) for kind, pointer in zip(types, arguments, strict=False)
        ]
        value = f.call(name, result, _THREAD, *values)
        if returns:
            f.emit(f"store {result} {value}, ptr {returns[0]}, align 1")

    return translate


def _assert_fail(f: FunctionBuilder, returns: list[str], arguments: list[str]) -> None:
    _provide("sim_assert_fail", "void", "ptr", "ptr", "i32", "ptr")(f, returns, arguments)


def _grid_handle(f: FunctionBuilder, returns: list[str], arguments: list[str]) -> None:
    """Return a handle of the grid or multi-grid: any value other than 0."""
    f.emit(f"store i64 1, ptr {returns[0]}, align 1")


def _grid_sync(f: FunctionBuilder, returns: list[str], arguments: list[str]) -> None:
    f.waits = True
    f.call("sim_grid_sync", "void", _THREAD)
    if returns:
        f.emit(f"store i32 0, ptr {returns[0]}, align 1")


_PROVIDED: dict[str, Callable[..., None]] = {
    "vprintf": _provide("sim_vprintf", "i32", "ptr", "ptr"),
    "malloc": _provide("sim_malloc", "ptr", "i64"),
    "free": _provide("sim_free", "void", "ptr"),
    "__assertfail": _assert_fail,
    "cudaCGGetIntrinsicHandle": _grid_handle,
    "cudaCGSynchronize": _grid_sync,
    "cudaGraphSetConditional": _provide("sim_set_conditional", "void", "i64", "i32"),
}
