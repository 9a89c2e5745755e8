"""Types: operators and functions give on the CPU what numba-cuda gives, without a GPU."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
from typing import TYPE_CHECKING, Any

import pytest
from numba.core import types
from numba.core.target_extension import target_override
from numba.core.typing.templates import Signature
from numba.cuda import descriptor, libdevice, libdevicefuncs

from helpers.kernels import device_of
from nbrt.backends.cpu.simt.builtins import REPLACEMENTS
from nbrt.backends.cpu.simt.builtins.python import PYTHON
from nbrt.backends.cpu.simt.target import register_whole_library, simt_target
from nbrt.backends.cuda.numpy_loops import add_numpy_overloads, complete_numpy_loops

if TYPE_CHECKING:
    from collections.abc import Callable

TYPES = (
    types.boolean,
    *(types.int8, types.int16, types.int32, types.int64),
    *(types.uint8, types.uint16, types.uint32, types.uint64),
    *(types.float16, types.float32, types.float64),
)

BINARY = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift"),
    *("and_", "or_", "xor", "lt", "le", "eq", "ne", "gt", "ge", "iadd", "isub", "imul"),
    *("ifloordiv", "imod", "ipow", "ilshift", "irshift", "iand", "ior", "ixor"),
]
UNARY = ["neg", "pos", "invert", "not_"]
MATH = [name for name in dir(math) if callable(getattr(math, name)) and not name.startswith("_")]


@pytest.fixture(scope="module")
def contexts() -> tuple[Any, Any]:
    complete_numpy_loops()
    add_numpy_overloads()
    ours, theirs = simt_target.typing_context, descriptor.cuda_target.typing_context
    register_whole_library()
    assert descriptor.cuda_target.target_context is not None
    ours.refresh()
    theirs.refresh()
    return ours, theirs


def result(context: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the type of the result of a call as text, or None if the call is invalid."""
    try:
        found = context.resolve_function_type(function, arguments, {})
    except Exception:  # noqa: BLE001 - NumbaError, and NotImplementedError from typing code
        return None
    return None if found is None else str(found.return_type)


def differences(contexts: tuple[Any, Any], function: Any, count: int) -> list[Any]:
    ours, theirs = contexts
    stand_in = PYTHON.get(function, function)
    found = []
    for arguments in itertools.product(TYPES, repeat=count):
        with target_override("nbrt-simt"):
            here = result(ours, stand_in, arguments)
        with device_of((9, 0)), target_override("cuda"):
            there = result(theirs, function, arguments)
        if here != there:
            found.append((arguments, here, there))
    return found


@pytest.mark.parametrize("name", BINARY)
def test_operators_of_two_numbers_are_typed_alike(name: str, contexts: tuple[Any, Any]) -> None:
    assert differences(contexts, getattr(operator, name), 2) == []


@pytest.mark.parametrize("name", UNARY)
def test_operators_of_one_number_are_typed_alike(name: str, contexts: tuple[Any, Any]) -> None:
    assert differences(contexts, getattr(operator, name), 1) == []


def test_true_division_in_place_differs_for_integers_only(contexts: tuple[Any, Any]) -> None:
    for arguments, here, there in differences(contexts, operator.itruediv, 2):
        assert not any(isinstance(typ, types.Float) for typ in arguments)
        assert here == "float64"
        assert there in ("int64", "uint64")


@pytest.mark.parametrize("name", sorted(MATH))
@pytest.mark.parametrize("count", [1, 2])
def test_functions_of_math_are_typed_alike(
    name: str, count: int, contexts: tuple[Any, Any]
) -> None:
    assert differences(contexts, getattr(math, name), count) == []


@pytest.mark.parametrize(
    ("name", "count"),
    [("abs", 1), ("int", 1), ("float", 1), ("bool", 1), ("round", 1), ("round", 2), ("pow", 2)],
)
def test_builtin_functions_are_typed_alike(
    name: str, count: int, contexts: tuple[Any, Any]
) -> None:
    assert differences(contexts, getattr(builtins, name), count) == []


@pytest.mark.parametrize("function", [max, min])
def test_extremes_are_typed_alike(function: Any, contexts: tuple[Any, Any]) -> None:
    # numba-cuda types them for booleans and float16 in other ways, and compiles neither.
    for arguments, here, there in differences(contexts, function, 2):
        assert here is None or there is None, (arguments, here, there)


@pytest.mark.parametrize("name", sorted(libdevicefuncs.functions))
def test_functions_of_libdevice_are_typed_alike(name: str, contexts: tuple[Any, Any]) -> None:
    ours = REPLACEMENTS.get(f"libdevice.{name[5:]}")
    if ours is None:
        assert name[5:].endswith(("_rd", "_ru", "_rz"))
        return
    expected = libdevicefuncs.create_signature(*libdevicefuncs.functions[name])
    (template,) = contexts[0].resolve_value_type(ours).templates
    (case,) = template.cases
    assert isinstance(case, Signature)
    assert (str(case.return_type), str(case.args)) == (
        str(expected.return_type),
        str(expected.args),
    )
    assert callable(getattr(libdevice, name[5:]))


@pytest.mark.parametrize(
    "name",
    [name for name in REPLACEMENTS if name.startswith("fp16.")],
)
def test_functions_of_fp16_are_typed_alike(name: str, contexts: tuple[Any, Any]) -> None:
    from numba.cuda import fp16

    theirs = contexts[1].resolve_value_type(getattr(fp16, name.partition(".")[2])).templates
    (ours,) = contexts[0].resolve_value_type(REPLACEMENTS[name]).templates
    assert [str(case) for case in ours.cases] == [str(c) for t in theirs for c in t.cases]
