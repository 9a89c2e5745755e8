"""Kernels by value: what arrives has the compile key of what was sent."""

from __future__ import annotations

import enum
import math
import sys
import types
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.by_value import dumps, loaded
from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.fingerprint import fingerprint
from nbrt_kernels.specs import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable

Pair = namedtuple("Pair", "left right")
PAIR = Pair(1.5, 2)
TABLE = np.arange(6.0).reshape(2, 3)
COLUMNS = np.asfortranarray(TABLE)
inner = types.ModuleType("inner_of_test")
inner.size = 4  # type: ignore[attr-defined]
outer = types.ModuleType("outer_of_test")
outer.inner = inner  # type: ignore[attr-defined]
outer.unused = sys  # type: ignore[attr-defined]


class Mode(enum.IntEnum):
    FAST = 3


class WrongInputError(ValueError):
    """An error that a kernel raises."""


@cuda.jit(device=True, fastmath=True)
def on_gpu(value: float) -> float:
    return value + TABLE[1, 2]


@numba.njit
def on_cpu(value: float) -> float:
    return on_gpu(value) if value > 0 else math.sqrt(value)


@nbrt.kernel
def other(x: Any) -> None:
    x[0] = on_cpu(x[0])


def uses_constants(x: Any, factor: float = 2.5) -> None:
    x[0] = TABLE[0, 1] + COLUMNS[1, 1] + PAIR.left + Mode.FAST * factor


def uses_functions(x: Any) -> None:
    other(x)
    x[1] = on_gpu(x[1])


def uses_modules(x: Any) -> None:
    x[0] = outer.inner.size * math.pi + np.float32(1)


def raises(x: Any) -> None:
    if x.size == 0:
        raise WrongInputError(3)


def closure(number: int) -> Callable[..., None]:
    def uses_closure(x: Any) -> None:
        x[0] = number

    return uses_closure


def undefined(x: Any) -> None:
    x[0] = not_defined  # type: ignore[name-defined]  # noqa: F821


FUNCTIONS = [uses_constants, uses_functions, uses_modules, raises, closure(7), undefined]


def key_of(function: Any) -> bytes:
    captures = Captures(kernel_function(function))
    return fingerprint(captures.frozen, captures.freeze)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_key_is_that_of_the_original(function: Callable[..., None]) -> None:
    with loaded(dumps(Captures(function))) as (copy,):
        assert copy is not function
        assert copy.__globals__ is not function.__globals__
        assert key_of(copy) == key_of(function)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_key_of_library_kernels_is_that_of_the_original(name: str) -> None:
    function = kernel_function(KERNELS[name].function)
    with loaded(dumps(Captures(function))) as (copy,):
        assert key_of(copy) == key_of(function)


def test_other_values_have_another_key() -> None:
    with loaded(dumps(Captures(closure(8)))) as (copy,):  # type: ignore[arg-type]
        assert key_of(copy) != key_of(closure(7))


def test_modules_contain_what_the_code_may_read() -> None:
    with loaded(dumps(Captures(uses_modules))) as (copy,):  # type: ignore[arg-type]
        sent = copy.__globals__["outer"]
        assert sent is not outer
        assert sorted(set(vars(sent)) - set(vars(types.ModuleType("")))) == ["inner"]
        assert copy.__globals__["np"] is np


def test_lines_of_sources_that_are_no_files_are_sent() -> None:
    import linecache

    lines = ["def sent(x):\n", "    x[0] = 1\n"]
    linecache.cache["<cell 3>"] = (0, None, lines, "<cell 3>")
    names: dict[str, Any] = {}
    exec(compile("".join(lines), "<cell 3>", "exec"), names)
    payload = dumps(Captures(names["sent"]))
    del linecache.cache["<cell 3>"]

    with loaded(payload):
        assert linecache.getline("<cell 3>", 2) == lines[1]


def test_absent_modules_of_the_program_are_empty_for_the_compiler() -> None:
    names: dict[str, Any] = {"__name__": "absent_module"}
    exec("def function(x):\n    x[0] = 1\n", names)
    payload = dumps(Captures(names["function"]))

    with loaded(payload):
        assert not hasattr(sys.modules["absent_module"], "function")
    assert "absent_module" not in sys.modules
