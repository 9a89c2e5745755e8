"""Explicit signatures of kernels and device functions: selection, conversion, pointers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, njit, types
from numba.core.typing import signature

import nbrt
from nbrt.backends.by_value import dumps, loaded
from nbrt.backends.captures import Captures
from nbrt.backends.declared_signatures import declared_signatures
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F4, F8, I4, I8, U4 = types.float32, types.float64, types.int32, types.int64, types.uint32
OUT = types.float64[::1]


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    with nbrt.device("cpu:0"):
        yield


def declared(function: Callable[..., object], *signatures: tuple[Any, ...]) -> nbrt.Kernel:
    """Return a kernel with signatures; one is given as such, several in a list."""
    dispatcher = cuda.jit(function)
    dispatcher.declared_signatures = list(signatures)
    dispatcher._specialized = len(signatures) == 1
    dispatcher._can_compile = False
    return nbrt.kernel(dispatcher)


def device(function: Callable[..., object], *signatures: tuple[Any, ...]) -> Any:
    """Return a device function as ``cuda.jit`` with signatures makes it; the result comes first."""
    dispatcher = cuda.jit(device=True)(function)
    dispatcher.declared_signatures = [signature(*each) for each in signatures]
    dispatcher._can_compile = False
    return dispatcher


def add(r: Any, a: Any, b: Any) -> None:
    r[0] = a + b


def launched(kernel: nbrt.Kernel, a: Any, b: Any) -> float:
    r = np.zeros(1)
    kernel[1, 1](r, a, b)
    return float(r[0])


def test_one_signature_converts_numbers_by_their_c_types() -> None:
    narrow = declared(add, (OUT, F4, F4))
    assert launched(narrow, 1.0, 2.0**-25) == 1.0
    assert launched(narrow, 0.1, 0) == float(np.float32(0.1))
    whole = declared(add, (OUT, I4, U4))
    assert launched(whole, 2**32 + 5, -1) == 5 + 2**32 - 1
    assert launched(whole, True, np.int64(3)) == 4


def test_a_float_is_no_integer() -> None:
    with pytest.raises(ArgumentTypeError, match=r"argument 1 is declared as int32, got 1\.5"):
        launched(declared(add, (OUT, I4, I4)), 1.5, 2)


def test_complex_booleans_and_halves() -> None:
    def parts(r: Any, z: Any, flag: Any, h: Any) -> None:
        r[0] = z.real
        r[1] = z.imag
        r[2] = flag
        r[3] = h

    kernel = declared(parts, (OUT, types.complex64, types.boolean, types.float16))
    r = np.zeros(4)
    kernel[1, 1](r, 0.1 + 0.2j, 7, 0.3)
    expected = [np.float32(0.1), np.float32(0.2), 1, np.float16(0.3)]
    np.testing.assert_array_equal(r, np.array(expected, np.float64))


def test_datetimes_and_tuples() -> None:
    def store(r: Any, when: Any, pair: Any) -> None:
        r[0] = when
        r[1] = when + pair[0]

    day = types.NPDatetime("s")
    pair = types.Tuple((types.NPTimedelta("s"), F4))
    kernel = declared(store, (types.Array(day, 1, "C"), day, pair))
    r = np.zeros(2, "datetime64[s]")
    kernel[1, 1](r, np.datetime64("2020-01-02"), (np.timedelta64(2, "m"), 1))
    assert list(r) == [np.datetime64("2020-01-02"), np.datetime64("2020-01-02T00:02:00")]


def test_the_signature_is_selected_by_the_types() -> None:
    kernel = declared(add, (OUT, F4, F4), (OUT, F8, F8))
    assert launched(kernel, np.float32(1), np.float32(2.0**-25)) == 1.0
    assert launched(kernel, 1, 2.0**-25) == 1.0 + 2.0**-25


def test_no_signature_or_several_fit() -> None:
    with pytest.raises(TypeError, match="No matching definition for argument type"):
        launched(declared(add, (OUT, F8, F8), (OUT, I8, I8)), 1j, 1j)
    kernel = declared(add, (OUT, F4, F8), (OUT, F8, F4), (OUT, I8, I8))
    with pytest.raises(TypeError, match=r"Ambiguous overloading for <function add [^>]*> \("):
        launched(kernel, 1.0, 2.0)
    assert launched(kernel, 1, 2) == 3


def test_arrays_must_be_of_the_declared_type() -> None:
    def fill(x: Any) -> None:
        x[cuda.threadIdx.x] = 300

    kernel = declared(fill, (types.Array(I4, 1, "C"),))
    for wrong in (np.zeros(4, "f4"), np.zeros(4, "i8"), np.zeros((2, 2), "i4"), 3):
        with pytest.raises(ArgumentTypeError, match="argument 0 is declared as array"):
            kernel[1, 4](wrong)
    with pytest.raises(ArgumentTypeError, match="argument 0 is declared as array"):
        kernel[1, 4](np.zeros(8, "i4")[::2])
    strided = np.zeros(8, "i4")
    declared(fill, (types.Array(I4, 1, "A"),))[1, 4](strided[::2])
    np.testing.assert_array_equal(strided, [300, 0] * 4)


def test_integers_of_one_size_share_their_bits() -> None:
    def shift(x: Any) -> None:
        x[0] = x[0] >> 1

    x = np.array([-2], "i4")
    declared(shift, (types.Array(U4, 1, "C"),))[1, 1](x)
    assert x[0] == 2**31 - 1


def test_an_address_is_a_pointer() -> None:
    def axpy(r: Any, a: Any, x: Any, n: Any) -> None:
        i = cuda.grid(1)
        if i < n:
            r[i] += a * x[i]

    kernel = declared(axpy, (types.CPointer(F4), F4, types.CPointer(I4), U4))
    r, x = np.ones(10, "f4"), np.arange(10, dtype="i4")
    kernel[2, 8](r.ctypes.data, 2, np.uint64(x.ctypes.data), 10)
    np.testing.assert_array_equal(r, 1 + 2 * x)
    for wrong in (1.5, -1, x):
        with pytest.raises(ArgumentTypeError, match="argument 0"):
            kernel[1, 1](wrong, 2, x.ctypes.data, 10)


def test_pointers_in_plain_python_and_on_streams() -> None:
    def double(x: Any, n: Any) -> None:
        i = cuda.grid(1)
        if i < n:
            x[i] = x[i] * 2

    kernel = declared(double, (types.CPointer(types.int16), U4))
    x = np.arange(5, dtype="i2")
    with nbrt.interpret():
        kernel[1, 8](x.ctypes.data, 5)
    stream = nbrt.Stream()
    kernel[1, 8, stream](x.ctypes.data, 5)
    stream.synchronize()
    np.testing.assert_array_equal(x, np.arange(5) * 4)


def test_checked_mode_refuses_pointers() -> None:
    kernel = declared(add, (types.CPointer(F8), F8, F8))
    with pytest.raises(nbrt.errors.UnsupportedConstructError, match="checked mode"):
        kernel.checked()[1, 1](np.zeros(1).ctypes.data, 1, 2)


def test_graphs_keep_the_conversion() -> None:
    kernel = declared(add, (OUT, F4, F4))

    def record(r: Any) -> None:
        kernel[1, 1](r, 1.0, 2.0**-25)

    graph: Any = nbrt.graph
    recorded = graph(record)
    r = np.zeros(1)
    for _ in range(2):
        r[0] = 0
        recorded(r)
        assert r[0] == 1.0


def by_value(x: Any) -> Any:
    return x


narrow_sum = device(lambda a, b: a + b, (F4, F4, F4))


def by_thread(a: Any, b: Any) -> Any:
    return a + b + cuda.threadIdx.x


wrapping_sum = device(by_thread, (I4, I4, I4), (F8, F8, F8))


def test_device_functions_convert_their_arguments_and_result() -> None:
    @nbrt.kernel
    def call_narrow(r: Any, a: Any, b: Any) -> None:
        r[0] = narrow_sum(a, b)

    @nbrt.kernel
    def call_wrapping(r: Any, a: Any, b: Any) -> None:
        r[0] = wrapping_sum(a, b)

    assert launched(call_narrow, 1.0, 2.0**-25) == 1.0
    one = np.int32(1)
    assert launched(call_wrapping, np.int32(2**31 - 1), one) == -(2.0**31)
    assert launched(call_wrapping, 1.5, 2) == 3.5
    with pytest.raises(nbrt.errors.CompileError, match="complex128"):
        launched(call_wrapping, 1j, 2)


def test_only_a_dispatcher_that_compiles_no_more_is_limited() -> None:
    compiled = njit(by_value)
    compiled.compile((F4,))
    assert declared_signatures(compiled) == []
    compiled.disable_compile()
    assert declared_signatures(compiled) == [((F4,), F4)]
    assert declared_signatures(narrow_sum) == [((F4, F4), F4)]
    assert declared_signatures(add) == []
    named = SimpleNamespace(declared_signatures=[[F4]])
    assert declared_signatures(named) == [((F4,), None)]


def test_device_functions_of_other_processes_keep_their_signatures() -> None:
    def kernel(r: Any, a: Any, b: Any) -> None:
        r[0] = narrow_sum(a, b)

    function: Any = kernel
    with loaded(dumps(Captures(function))) as (copy,):
        (callee,) = Captures(copy).device_functions
        assert declared_signatures(callee) == [((F4, F4), F4)]
