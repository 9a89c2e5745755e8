"""Errors for code that cannot be compiled: the name and the line in the kernel."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
from numba import cuda
from numba.core import errors as cpu_errors
from numba.cuda import compiler, vectorizers
from numba.cuda._internal import cuda_bf16
from numba.cuda.core import errors as cuda_errors

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.plain_messages import plain_messages
from nbrt.errors import ArgumentTypeError, CompileError, UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable


def compile_error(kernel: Any, *args: Any) -> CompileError:
    plan = CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (32, 1, 1))
    arguments = args or (np.zeros(32),)
    with pytest.raises(CompileError) as caught:
        plan.prepare(arguments)
    with pytest.raises(CompileError) as again:
        plan(*arguments)
    assert str(again.value) == str(caught.value)
    return caught.value


def line_of(function: Any, text: str) -> str:
    """Return ``file:line`` of the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + number}"


@cuda.jit(device=True)
def shuffles(x: Any) -> Any:
    return cuda_bf16.__shfl_sync(0xFFFFFFFF, x, 0, 32)


@cuda.jit(device=True)
def reads_nothing(x: Any) -> Any:
    return x.nothing + 1


def other_format(x: Any) -> None:
    x[0] = cuda_bf16.__shfl_up_sync(0xFFFFFFFF, x[0], 1, 32)


def passed_on(x: Any) -> None:
    x[0] = len(cuda.cg)


def shared_passed_on(x: Any) -> None:
    x[0] = len(cuda.shared.array)


@pytest.mark.parametrize(
    ("kernel", "construct", "text"),
    [
        (other_format, "cuda.bf16.", "__shfl_up_sync"),
        (passed_on, "cuda.cg", "len("),
        (shared_passed_on, "cuda.shared.array", "len("),
    ],
)
def test_unsupported_constructs_are_named(
    kernel: Callable[..., None], construct: str, text: str
) -> None:
    error = compile_error(kernel)
    assert isinstance(error, UnsupportedConstructError)
    assert str(error).startswith(f"{line_of(kernel, text)}: {construct}")
    assert ";" in str(error)  # a next step follows


def test_unsupported_constructs_in_device_functions_are_named_there() -> None:
    def kernel(x: Any) -> None:
        x[0] = shuffles(x[0])

    error = compile_error(kernel)
    assert isinstance(error, UnsupportedConstructError)
    assert str(error).startswith(line_of(shuffles.py_func, "__shfl_sync"))


def test_unknown_names_of_the_dialect() -> None:
    def kernel(x: Any) -> None:
        x[0] = cuda.no_such_thing

    assert "numba.cuda has no attribute 'no_such_thing'" in str(compile_error(kernel))


def test_the_number_of_dimensions_must_be_constant() -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(x.ndim)] = 1

    error = compile_error(kernel)
    assert str(error).startswith(line_of(kernel, "x.ndim"))
    assert "cuda.grid takes one constant, 1, 2 or 3" in str(error)


def test_typing_errors_name_the_innermost_line_of_the_user() -> None:
    def kernel(x: Any) -> None:
        i = cuda.grid(1)
        x[i] = reads_nothing(x)

    error = compile_error(kernel)
    assert str(error).startswith(line_of(reads_nothing.py_func, "x.nothing"))
    assert "Unknown attribute 'nothing' of type array(float64, 1d, C)" in str(error)
    assert "in kernel" in str(error)
    assert "\n" not in str(error)
    assert error.__cause__ is not None


def test_operations_without_a_version_for_the_types() -> None:
    def kernel(x: Any) -> None:
        x["a"] = 1

    error = compile_error(kernel)
    assert str(error).startswith(line_of(kernel, '"a"'))
    assert "setitem(" in str(error)
    assert len(str(error)) < 400


def test_allocation_gets_advice() -> None:
    def kernel(x: Any) -> None:
        x[0] = np.zeros(3)[0]

    assert "use cuda.local.array" in str(compile_error(kernel))


def test_undecorated_functions_get_advice() -> None:
    def helper(x: Any) -> Any:
        return x

    def kernel(x: Any) -> None:
        x[0] = helper(x[0])

    assert "@cuda.jit(device=True)" in str(compile_error(kernel))


def test_local_array_shapes_must_be_constant() -> None:
    def kernel(x: Any) -> None:
        x[0] = cuda.local.array(x.size, np.float32)[0]

    assert "must consist of integers known at compile time" in str(compile_error(kernel))


def test_kernels_must_not_return_values() -> None:
    @cuda.jit(device=True)
    def one() -> Any:
        return 1

    def direct(x: Any) -> Any:
        return x[0]

    def through_a_call(x: Any) -> Any:
        return one()

    for kernel in (direct, through_a_call, lambda x: x):
        assert "a kernel must not return a value" in str(compile_error(kernel))


def test_what_cannot_be_a_kernel() -> None:
    class Holder:
        def method(self, x: Any) -> None: ...

    async def coroutine(x: Any) -> None: ...

    def generator(x: Any) -> Any:
        yield x

    def keyword(x: Any, *, n: int) -> None: ...

    with pytest.raises(ArgumentTypeError, match="bound method"):
        CpuProgram(Holder().method)
    for wrong in (3, len, Holder, functools.partial(keyword, n=1)):
        with pytest.raises(ArgumentTypeError, match="must be a Python function"):
            CpuProgram(wrong)  # type: ignore[arg-type]
    for wrong in (coroutine, generator):
        with pytest.raises(UnsupportedConstructError, match="plain function"):
            CpuProgram(wrong)
    with pytest.raises(CompileError, match="'n' can only be given by keyword"):
        CpuProgram(keyword)


def test_wrapped_kernels_are_what_they_wrap_in_bytecode_only() -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(1)] = 1

    @functools.wraps(kernel)
    def wrapper(x: Any, y: Any) -> None:
        x[cuda.grid(1)] = y

    x = np.zeros(4)
    CpuProgram(wrapper, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(x, 3.0)
    assert (x == 3).all()


# -- exceptions while running ----------------------------------------------------------------


FAILS_WHERE_TOLD = """
def kernel(x, bad):
    i = cuda.grid(1)
    if i == bad:
        raise IndexError("out of bounds")
    assert i != bad + 1
    x[i] = 1
"""


@pytest.mark.parametrize("grid", [1, 64, 20_000])
def test_exceptions_of_the_kernel_reach_the_caller(grid: int) -> None:
    # From text, as pytest rewrites the assertions of this file.
    scope: dict[str, Any] = {"cuda": cuda}
    exec(FAILS_WHERE_TOLD, scope)
    plan = CpuProgram(scope["kernel"], cache=False).plan(0, (grid, 1, 1), (32, 1, 1))
    x = np.zeros(grid * 32)
    for _ in range(3):
        with pytest.raises(IndexError, match="out of bounds"):
            plan(x, grid * 32 - 3)
        with pytest.raises(AssertionError):
            plan(x, -1)
    plan(x, -5)
    assert (x == 1).all()


def test_a_type_error_of_the_kernel_is_not_taken_for_a_wrong_argument() -> None:
    def kernel(x: Any) -> None:
        if x[0] == 0:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as caught:
        CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(np.zeros(1))
    assert type(caught.value) is TypeError


@pytest.mark.parametrize("broken", ["cuda.grid(x)", "x[0] = 'a' + 1"])
def test_the_traceback_leaves_the_compiler_out(broken: str) -> None:
    namespace: dict[str, Any] = {"cuda": cuda}
    exec(f"def kernel(x):\n    {broken}\n", namespace)
    with pytest.raises(CompileError) as caught:
        CpuProgram(namespace["kernel"]).plan(0, (1, 1, 1), (1, 1, 1))(np.zeros(1))
    files = [str(entry.path) for entry in caught.traceback]
    assert not any("/numba/core/" in file for file in files)
    cause = caught.value.__cause__
    assert cause is None or cause.__traceback__ is None


@pytest.mark.parametrize("modules", [(cpu_errors,), (cpu_errors, cuda_errors)])
def test_the_errors_of_numba_are_plain_within_a_compilation_only(modules: Any) -> None:
    def said() -> str:
        return str(modules[-1].TypingError("wrong"))

    before = said()
    with plain_messages(*modules):
        with plain_messages(*modules):
            assert said() == "wrong"
        assert said() == "wrong"
    assert said() == before

    def kernel(x: Any) -> None:
        x[0] = "a" + 1

    compile_error(kernel)
    assert said() == before


# -- errors that numba-cuda raises ---------------------------------------------------------------


def test_a_helper_with_an_error_is_named_as_numba_cuda_names_it() -> None:
    @cuda.jit(device=True)
    def helper(x: Any) -> Any:
        return missing_function(x)  # type: ignore[name-defined]  # noqa: F821

    def kernel(x: Any) -> None:
        x[0] = helper(1.5)

    error = compile_error(kernel)
    assert "name 'missing_function' is not defined" in str(error)
    assert "resolving callee type: type(CUDADispatcher" in str(error.__cause__)


def test_functions_compiled_for_the_host_alone_are_refused() -> None:
    @numba.njit("int64(int64)")  # type: ignore[untyped-decorator]
    def add(x: Any) -> Any:
        return x + 1

    def kernel(x: Any) -> None:
        x[0] = add(x[0])

    text = str(compile_error(kernel))
    assert "Untyped global name 'add': using cpu function on device" in text


def test_ufuncs_of_the_target_cuda_are_refused_by_name() -> None:
    ufunc = object.__new__(vectorizers.CUDAGeneralizedUFunc)

    def kernel(x: Any) -> None:
        ufunc(x, x)

    text = str(compile_error(kernel))
    assert "Untyped global name 'ufunc'" in text
    assert "cuda.jit(device=True)" in text


def test_functions_in_cuda_source_are_refused_by_name() -> None:
    external = compiler.ExternFunction("external", "int32(int32)")

    def kernel(x: Any) -> None:
        x[0] = external(1)

    assert "external is a function in CUDA C++ or PTX" in str(compile_error(kernel))


@pytest.mark.parametrize(
    ("mask", "predicate", "message"),
    [
        (1.5, 1, "Mask type must be an integer"),
        (True, 1, "Mask type must be an integer"),
        (1, 1.5, "Predicate must be an integer or boolean"),
    ],
)
def test_votes_take_integers(mask: Any, predicate: Any, message: str) -> None:
    def kernel(x: Any) -> None:
        x[0] = cuda.all_sync(mask, predicate)

    assert message in str(compile_error(kernel))
