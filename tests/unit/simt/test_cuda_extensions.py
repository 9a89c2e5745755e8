"""Types that a program registers with numba-cuda, in kernels on CPU devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba.extending
import numpy as np
import pytest
from numba import cuda
from numba.core import types
from numba.cuda import cgutils, cudadecl, cudaimpl
from numba.cuda.core.imputils import lower_constant
from numba.cuda.extending import (
    core_models,
    lower_builtin,
    lower_cast,
    make_attribute_wrapper,
    overload_attribute,
    overload_method,
    register_model,
    type_callable,
    typeof_impl,
)
from numba.cuda.typing.templates import AttributeTemplate

from helpers.processes import output_of
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.prepared import PreparedArgument
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable


def run(kernel: Callable[..., None], *arguments: Any, threads: int = 1) -> None:
    """Launch a kernel with one block."""
    program = CpuProgram(kernel, cache=False)
    program.plan(0, (1, 1, 1), (threads, 1, 1))(*arguments)


# -- a type, as the documentation of numba-cuda makes one ------------------------------------------


class Interval:
    """A half-open interval of numbers."""

    def __init__(self, lo: float, hi: float) -> None:
        self.lo = lo
        self.hi = hi


class IntervalType(types.Type):
    """The type of `Interval` in kernels."""

    def __init__(self) -> None:
        super().__init__(name="Interval")


interval_type = IntervalType()


@typeof_impl.register(Interval)
def _typeof_interval(_value: Any, _c: Any) -> Any:
    return interval_type


@type_callable(Interval)
def _type_interval(_context: Any) -> Any:
    def typer(lo: Any, hi: Any) -> Any:
        return interval_type if isinstance(lo, types.Float) else None

    return typer


@register_model(IntervalType)
class _IntervalModel(core_models.StructModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        members = [("lo", types.float64), ("hi", types.float64)]
        super().__init__(manager, fe_type, members)


make_attribute_wrapper(IntervalType, "lo", "lo")
make_attribute_wrapper(IntervalType, "hi", "hi")


@lower_builtin(Interval, types.Float, types.Float)
def _make_interval(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    interval = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    interval.lo, interval.hi = args
    return interval._getvalue()


@cudadecl.registry.register_attr
class _IntervalAttributes(AttributeTemplate):
    key = IntervalType

    def resolve_width(self, _interval: Any) -> Any:
        return types.float64


@cudaimpl.lower_attr(IntervalType, "width")
def _width(_context: Any, builder: Any, _sig: Any, arg: Any) -> Any:
    return builder.fsub(builder.extract_value(arg, 1), builder.extract_value(arg, 0))


@lower_cast(IntervalType, types.float64)
def _interval_to_float(_context: Any, builder: Any, _from: Any, _to: Any, value: Any) -> Any:
    return builder.extract_value(value, 0)


@overload_method(IntervalType, "shifted")
def _shifted(interval: Any, by: Any = 1.0) -> Any:
    # Numba compares the parameters of both functions, annotations included.
    def implementation(interval: Any, by: Any = 1.0) -> Any:
        return Interval(interval.lo + by, interval.hi + by)

    return implementation


@overload_attribute(IntervalType, "middle")
def _middle(interval: Any) -> Any:
    def implementation(interval: Any) -> Any:
        return (interval.lo + interval.hi) / 2

    return implementation


@cuda.jit(device=True)
def hull(a: Any, b: Any) -> Any:
    return Interval(min(a.lo, b.lo), max(a.hi, b.hi))


@numba.njit  # type: ignore[untyped-decorator]
def width_of(interval: Any) -> Any:
    return interval.width


def test_a_type_of_the_program_is_a_value_in_kernels() -> None:
    def kernel(out: Any, x: Any) -> None:
        interval = Interval(x[0], x[1])
        out[0] = interval.lo
        out[1] = interval.width
        out[2] = interval.shifted(2.0).hi
        out[3] = interval.shifted().lo
        out[4] = interval.middle
        out[5] = width_of(hull(interval, interval.shifted(by=10.0)))

    out = np.zeros(6)
    run(kernel, out, np.array([1.5, 4.0]))
    np.testing.assert_array_equal(out, [1.5, 2.5, 6.0, 2.5, 2.75, 12.5])


def test_arrays_hold_values_of_a_type_of_the_program() -> None:
    def kernel(out: Any) -> None:
        own = cuda.local.array(2, interval_type)
        block = cuda.shared.array(4, interval_type)
        i = cuda.threadIdx.x
        own[0] = Interval(1.0 * i, 2.0 * i)
        block[i] = own[0].shifted(0.5)
        cuda.syncthreads()
        out[i] = block[3 - i].width + own[0].lo * 100

    out = np.zeros(4)
    run(kernel, out, threads=4)
    np.testing.assert_array_equal(out, [3, 102, 201, 300])


@lower_constant(IntervalType)
def _interval_constant(context: Any, builder: Any, typ: Any, value: Any) -> Any:
    interval = cgutils.create_struct_proxy(typ)(context, builder)
    interval.lo = context.get_constant(types.float64, value.lo)
    interval.hi = context.get_constant(types.float64, value.hi)
    return interval._getvalue()


UNIT = Interval(2.0, 3.5)


def test_a_captured_object_of_the_program_is_a_constant() -> None:
    def kernel(out: Any) -> None:
        out[0] = UNIT.shifted(1.0).lo + UNIT.width

    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 4.5


def test_a_cast_of_the_program_joins_two_branches() -> None:
    def convert(x: Any) -> Any: ...

    @type_callable(convert)
    def _type_convert(_context: Any) -> Any:
        return lambda x: types.float64 if isinstance(x, IntervalType) else None

    @lower_builtin(convert, IntervalType)
    def _convert(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.cast(builder, args[0], sig.args[0], types.float64)

    def kernel(out: Any) -> None:
        out[0] = convert(Interval(3.0, 4.0))

    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 3.0


# -- arguments that an extension of the launch prepares --------------------------------------------


def test_an_argument_is_passed_as_another_type() -> None:
    def kernel(out: Any, interval: Any, x: Any) -> None:
        out[0] = interval.width + x[1]
        out[1] = hull(interval, Interval(0.0, 1.0)).lo

    out, given = np.zeros(2), types.UniTuple(types.float64, 2)
    argument = PreparedArgument(interval_type, given, (1.5, 4.0))
    array = PreparedArgument(types.float64[::1], types.float64[::1], np.arange(2.0))
    for _ in range(2):
        run(kernel, out, argument, array)
        np.testing.assert_array_equal(out, [3.5, 0])


@pytest.mark.parametrize(
    ("given", "value", "message"),
    [
        (types.UniTuple(types.float64, 3), (1.0, 2.0, 3.0), "has 2 members"),
        (types.UniTuple(types.float32, 2), (1.0, 2.0), "LLVM's type double"),
    ],
)
def test_a_prepared_value_of_other_members_is_refused(given: Any, value: Any, message: str) -> None:
    def kernel(out: Any, interval: Any) -> None:
        out[0] = interval.width

    with pytest.raises(CompileError, match=message):
        run(kernel, np.zeros(1), PreparedArgument(interval_type, given, value))


def test_a_type_made_by_a_call_has_a_model() -> None:
    code = """
import numpy as np
from numba.core import types
from numba.cuda.extending import core_models, overload_attribute, register_model

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.prepared import PreparedArgument

made = type("MadeType", (types.Type,), {})
register_model(made)(core_models.OpaqueModel)

@overload_attribute(made, "answer")
def answer(value):
    return lambda value: 42

def kernel(out, value):
    out[0] = value.answer

out = np.zeros(1)
value = PreparedArgument(made(name="Made"), types.intp, 0)
CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(out, value)
print(out)
"""
    assert output_of(code) == "[42.]\n"
