"""The CPU compiler accepts what numba-cuda accepts: functions, operators, statements.

Functions are enumerated from the installed packages. What is refused is compiled alone, what is
accepted in one kernel for each compiler, so that the whole language takes seconds.
"""

from __future__ import annotations

import builtins
import cmath
import math
import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba.core import types
from numba.core.target_extension import target_override
from numba.cuda import descriptor

from helpers.kernels import compile_ptx, device_of
from helpers.language import ACCEPTED, NAMES, REFUSED
from helpers.two_compilers import cpu_refusal, cuda_refusal, function_of, refused_in_batch
from nbrt.backends.cpu.simt.frontend.python_semantics import REPLACEMENTS
from nbrt.backends.cpu.simt.target import register_whole_library, simt_target
from nbrt.backends.cuda.numpy_loops import add_numpy_overloads, complete_numpy_loops

if TYPE_CHECKING:
    from collections.abc import Iterable

DTYPES = ("int64", "float32", "float64")
X = np.ones(4)
ARGUMENTS = (X, X, X)
UFUNCS = sorted(name for name in dir(np) if isinstance(getattr(np, name), np.ufunc))


@pytest.fixture(scope="module", autouse=True)
def _compilers() -> None:
    """Skip where CUDA's compiler is missing, and load what both know of NumPy."""
    compile_ptx(lambda out: None, (types.Array(types.int32, 1, "C"),), (9, 0))
    complete_numpy_loops()
    add_numpy_overloads()
    register_whole_library()
    assert descriptor.cuda_target.target_context is not None
    simt_target.typing_context.refresh()
    descriptor.cuda_target.typing_context.refresh()


def result_type(context: Any, function: Any, arguments: tuple[Any, ...]) -> str | None:
    try:
        found = context.resolve_function_type(function, arguments, {})
    except Exception:  # noqa: BLE001 - NumbaError, and NotImplementedError from typing code
        return None
    return None if found is None else str(found.return_type)


def typed_alike(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Tell whether there is such a call; fails if the two compilers type it differently."""
    ours = REPLACEMENTS.get(function, function)
    with target_override("nbrt-simt"):
        here = result_type(simt_target.typing_context, ours, arguments)
    with device_of((9, 0)), target_override("cuda"):
        there = result_type(descriptor.cuda_target.typing_context, function, arguments)
    assert here == there, (function, arguments)
    return here is not None


def hold_accepted(bodies: list[str], arguments: tuple[Any, ...] = ARGUMENTS) -> None:
    """Fail with the names of the bodies that one of the compilers refuses."""
    assert bodies
    assert refused_in_batch(bodies, arguments, cpu_refusal, NAMES) == {}
    assert refused_in_batch(bodies, arguments, cuda_refusal, NAMES) == {}


def hold_cpu_within_cuda(bodies: Iterable[str]) -> list[str]:
    """Fail if CUDA refuses what the CPU compiler accepts; return what both accept."""
    accepted = [body for body in bodies if cpu_refusal(function_of(body), ARGUMENTS) is None]
    assert refused_in_batch(accepted, ARGUMENTS, cuda_refusal) == {}
    return accepted


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint64", "float16", "complex64"])
def test_universal_functions_are_typed_alike(dtype: str) -> None:
    kind = getattr(types, dtype)
    known = [u for u in (getattr(np, name) for name in UFUNCS) if typed_alike(u, (kind,) * u.nin)]
    assert len(known) > 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_universal_functions_of_scalars(dtype: str) -> None:
    kind = getattr(types, dtype)
    bodies = []
    for name in UFUNCS:
        ufunc = getattr(np, name)
        if typed_alike(ufunc, (kind,) * ufunc.nin):
            given = ", ".join(("x[0]", "y[0]")[: ufunc.nin])
            bodies.append(f"r = np.{name}({given})")
    x = np.ones(4, dtype)
    hold_accepted(bodies, (x, x, x))
    assert len(bodies) > 75


def test_universal_functions_write_arrays_that_they_are_given_and_make_none() -> None:
    hold_accepted([f"np.{name}(x, o)" for name in ("sqrt", "exp", "sin", "floor", "abs")])
    hold_accepted(["np.add(x, 1, x)", "np.power(x, y, o)", "x += 1", "x *= y", "x **= 2"])
    for body in ("a = np.sqrt(x)", "a = np.sin(x)", "a = np.add(x, 1)"):
        assert cpu_refusal(function_of(body), ARGUMENTS)
        assert cuda_refusal(function_of(body), ARGUMENTS)


@pytest.mark.parametrize("module", [math, cmath], ids=lambda module: module.__name__)
def test_functions_of_scalars_in_modules(module: Any) -> None:
    kinds = [types.complex128] if module is cmath else [getattr(types, name) for name in DTYPES]
    for kind in kinds:
        bodies = []
        for name in (name for name in dir(module) if not name.startswith("_")):
            function = getattr(module, name)
            if not callable(function):
                bodies.append(f"r = {module.__name__}.{name}")
                continue
            bodies += [
                f"r = {module.__name__}.{name}({', '.join(('x[0]', 'y[0]')[:count])})"
                for count in (1, 2)
                if typed_alike(function, (kind,) * count)
            ]
        x = np.ones(4, str(kind))
        hold_accepted(bodies, (x, x, x))


NUMPY = [name for name in dir(np) if not name.startswith("_") and callable(getattr(np, name))]


def is_known(function: Any) -> bool:
    try:
        return simt_target.typing_context.resolve_value_type(function) is not None
    except Exception:  # noqa: BLE001 - Numba raises many kinds for what it does not know
        return False


def test_functions_of_numpy() -> None:
    bodies = [
        f"r = np.{name}({given})"
        for name in NUMPY
        if not isinstance(getattr(np, name), np.ufunc) and is_known(getattr(np, name))
        for given in ("x[0]", "x")
    ]
    bodies += ["r = np.isclose(x[0], y[0])", "r = np.searchsorted(x, 1)"]
    accepted = hold_cpu_within_cuda(bodies)
    assert {"r = np.max(x)", "r = np.sum(x)", "r = np.float32(x[0])", *bodies[-2:]} <= set(accepted)


def test_methods_of_arrays() -> None:
    names = [name for name in dir(np.ndarray) if not name.startswith("_")]
    accepted = hold_cpu_within_cuda(
        f"r = x.{name}({given})" for name in names for given in ("", "1")
    )
    assert {"r = x.sum()", "r = x.mean()"} <= set(accepted)


def test_builtin_functions() -> None:
    names = [
        name
        for name, value in vars(builtins).items()
        if not name.startswith("_")
        and callable(value)
        and not (isinstance(value, type) and issubclass(value, BaseException))
        and name not in ("breakpoint", "exit", "quit")
    ]
    accepted = hold_cpu_within_cuda(
        f"r = {name}({given})" for name in names for given in ("x[0]", "x", "x[0], y[0]", "(1, 2)")
    )
    assert {"r = abs(x[0])", "r = max(x[0], y[0])", "r = int(x[0])"} <= set(accepted)


def test_constructs_that_both_accept() -> None:
    hold_accepted(list(ACCEPTED.values()))


@pytest.mark.parametrize("name", REFUSED)
def test_constructs_that_both_refuse(name: str) -> None:
    function = function_of(REFUSED[name][0], NAMES)
    assert cuda_refusal(function, ARGUMENTS)
    assert cpu_refusal(function, ARGUMENTS)


@pytest.mark.parametrize("name", [name for name, (_, says) in REFUSED.items() if says])
def test_refusals_say_what_to_do(name: str) -> None:
    body, says = REFUSED[name]
    assert re.search(rf":\d+.*: .*{says}", cpu_refusal(function_of(body, NAMES), ARGUMENTS) or "")


STATEFUL = [
    *(f"random.{name}" for name in dir(random) if name[0].islower()),
    *(f"np.random.{name}" for name in dir(np.random) if name[0].islower()),
]


def test_generators_with_hidden_state_are_refused_by_name() -> None:
    functions = [
        name
        for name in STATEFUL
        if callable(eval(name))  # names from dir()
    ]
    assert len(functions) > 70
    for name in functions:
        refusal = cpu_refusal(function_of(f"r = {name}()"), ARGUMENTS)
        assert refusal
        assert "nbrt_kernels.random" in refusal, name
        assert name.rpartition(".")[2] in refusal or name in ("np.random.ranf", "np.random.sample")


def test_generators_that_a_kernel_refers_to_are_refused() -> None:
    names = {
        "rng": np.random.default_rng(0),
        "old": np.random.RandomState(0),
        "gauss": random.gauss,
        "own": random.Random(0),
    }
    for body in ("r = rng.normal()", "r = old.rand()", "r = gauss(0, 1)", "r = own.random()"):
        refusal = cpu_refusal(function_of(body, names), ARGUMENTS)
        assert "nbrt_kernels.random" in (refusal or ""), body
