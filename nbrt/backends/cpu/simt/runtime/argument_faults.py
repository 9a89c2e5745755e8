"""Which argument of a kernel a compile error is about: None, a read-only array, or dimensions."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core import ir, types
from numba.core.compiler import run_frontend
from numba.core.errors import NumbaError

from nbrt.backends.cpu.simt.runtime.arguments import parameter_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FunctionType

__all__ = ["fault_of_argument"]

_READS = ("getitem", "static_getitem")


class _Use(NamedTuple):
    """An instruction that uses a parameter of the kernel.

    Attributes
    ----------
    parameter : int
        The number of the parameter, from 0.
    indices : int or None
        Of a read or a write of elements, the number of its indices; None: unknown, or no such use.
    is_write : bool
        Whether the instruction writes elements, or may, as a call.
    """

    parameter: int
    indices: int | None
    is_write: bool


def fault_of_argument(
    function: FunctionType,
    arguments: Sequence[Any],
    places: Iterable[tuple[str, int]],
    reason: str,
) -> str | None:
    """Return a message about the argument that a compile error comes from, if one is found.

    Only what both the types and the kernel's code show is reported: the lines that Numba names
    must use the argument.

    Parameters
    ----------
    function : function
        The kernel.
    arguments : sequence of numba types
        The types of its arguments.
    places : iterable of tuple
        File and line of each place that Numba names, the innermost first.
    reason : str
        Numba's reason.

    Returns
    -------
    str or None
        Name and number of the argument, what was expected and given, and the next step.
    """
    file = function.__code__.co_filename
    lines = [line for name, line in places if name == file]
    if not lines:
        return None
    try:
        code = run_frontend(function)
    except NumbaError:  # Python that Numba does not know; the reason says so
        return None
    for line in lines:
        for use in _uses(code, line):
            fault = _fault(function, arguments, use, line, reason)
            if fault is not None:
                return fault
    return None


def _fault(
    function: FunctionType, arguments: Sequence[Any], use: _Use, line: int, reason: str
) -> str | None:
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    number = use.parameter
    if (
        number >= min(len(arguments), len(parameters))
        or parameters[number].kind is inspect.Parameter.VAR_POSITIONAL
    ):
        return None
    typ, name = arguments[number], parameter_name(function, number)
    subject = f"argument {name!r} (number {number + 1})"
    if typ is types.none and "none" in reason:
        return (
            f"{subject}: expected an array or a number, got None; pass one, or test "
            f"`{name} is None` before line {line}, which is decided when the kernel compiles"
        )
    if not isinstance(typ, types.Array):
        return None
    if not typ.mutable and use.is_write and "readonly" in reason:
        return (
            f"{subject}: expected an array that can be written, as line {line} writes to it, got "
            f"a read-only array; pass {name}.copy(), or an array whose flags.writeable is True"
        )
    if use.indices is not None and use.indices != typ.ndim and _is_of_indices(typ, use, reason):
        return (
            f"{subject}: expected an array with {_counted(use.indices)}, one for each index of "
            f"line {line}, got an array of {typ.dtype} with {_counted(typ.ndim)}; pass another "
            f"view of it, such as {name}.reshape(...), or give it {typ.ndim} "
            f"{'index' if typ.ndim == 1 else 'indices'}"
        )
    return None


def _is_of_indices(array: types.Array, use: _Use, reason: str) -> bool:
    """Return whether a reason can come from the number of indices.

    Too many never fit. Too few give a view of the other dimensions, which kernels may use: the
    reason must be an operation on an array of so many, or one whose result is an array.
    """
    assert use.indices is not None
    if use.indices > array.ndim:
        return "cannot index" in reason
    view = f"array({array.dtype}, {array.ndim - use.indices}d"
    is_of_view = view in reason and not reason.startswith("Unknown attribute")
    return is_of_view or "makes a new array" in reason


def _counted(dimensions: int) -> str:
    return f"{dimensions} dimension{'' if dimensions == 1 else 's'}"


def _uses(code: Any, line: int) -> Iterator[_Use]:
    for block in code.blocks.values():
        for instruction in block.body:
            if instruction.loc.line == line and not isinstance(instruction, ir.Del):
                yield from _uses_of(code, instruction)


def _uses_of(code: Any, instruction: Any) -> Iterator[_Use]:
    value = instruction.value if isinstance(instruction, ir.Assign) else None
    if isinstance(instruction, ir.SetItem | ir.StaticSetItem):
        subject, indices = instruction.target, _indices(code, instruction)
        is_write = True
    elif isinstance(value, ir.Expr) and value.op in _READS:
        subject, indices = value.value, _indices(code, value)
        is_write = False
    else:
        is_write = isinstance(value, ir.Expr) and value.op == "call"
        for variable in instruction.list_vars():
            number = _parameter_of(code, variable)
            if number is not None:
                yield _Use(number, None, is_write)
        return
    number = _parameter_of(code, subject)
    if number is not None:
        yield _Use(number, indices, is_write)


def _parameter_of(code: Any, variable: Any) -> int | None:
    try:
        definition = code.get_definition(variable)
    except KeyError:  # assigned at several places, or nowhere
        return None
    return definition.index if isinstance(definition, ir.Arg) else None


def _indices(code: Any, access: Any) -> int | None:
    """Return the number of indices of an access; None if the code does not show that."""
    if isinstance(access, ir.StaticSetItem) or _is_expression(access, "static_getitem"):
        parts = access.index if isinstance(access.index, tuple) else (access.index,)
        return len(parts) if all(isinstance(part, int) for part in parts) else None
    definitions = code._definitions.get(access.index.name, ())
    if len(definitions) == 1 and _is_expression(definitions[0], "build_tuple"):
        items = definitions[0].items
        return len(items) if all(_is_number(code, item) for item in items) else None
    return 1 if _is_number(code, access.index) else None


def _is_number(code: Any, variable: Any) -> bool:
    """Return whether a variable holds numbers, and no tuple or slice; False if that is unknown."""
    pending, seen = [variable.name], set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        definitions = code._definitions.get(name, ())
        if not definitions:
            return False
        for definition in definitions:
            if isinstance(definition, ir.Var):
                pending.append(definition.name)
            elif not _gives_number(code, definition):
                return False
    return True


def _gives_number(code: Any, definition: Any) -> bool:
    if isinstance(definition, ir.Const):
        return isinstance(definition.value, int)
    if _is_expression(definition, "static_getitem"):  # a, b = cuda.grid(2)
        unpacked = code._definitions.get(definition.value.name, ())
        return len(unpacked) == 1 and _is_expression(unpacked[0], "exhaust_iter")
    if _is_expression(definition, "call"):  # cuda.grid(1)
        given = [d for each in definition.args for d in code._definitions.get(each.name, ())]
        return len(given) == 1 and isinstance(given[0], ir.Const) and given[0].value == 1
    # threadIdx.x, arithmetic, or the variable of a loop
    return _is_expression(definition, "getattr", "binop", "inplace_binop", "unary", "pair_first")


def _is_expression(definition: Any, *operations: str) -> bool:
    return isinstance(definition, ir.Expr) and definition.op in operations
