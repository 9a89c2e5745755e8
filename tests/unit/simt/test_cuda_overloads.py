"""Functions, methods and attributes that a program registers for CUDA, on CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numba.extending
import numpy as np
import pytest
from llvmlite import ir
from numba import cuda
from numba.core import types
from numba.cuda import cudadecl, cudaimpl
from numba.cuda.core import config as cuda_config
from numba.cuda.core.errors import NumbaWarning
from numba.cuda.extending import (
    intrinsic,
    overload,
    register_jitable,
)
from numba.cuda.typing.templates import ConcreteTemplate, signature

from helpers.processes import ROOT, output_of
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run(kernel: Callable[..., None], *arguments: Any, threads: int = 1) -> None:
    """Launch a kernel with one block."""
    program = CpuProgram(kernel, cache=False)
    program.plan(0, (1, 1, 1), (threads, 1, 1))(*arguments)


# -- functions, operators, methods and attributes --------------------------------------------------


def twice(_x: Any) -> Any:
    """Stand for code that only kernels have."""


class _TwiceTemplate(ConcreteTemplate):
    key = twice
    cases = [signature(types.int32, types.int32), signature(types.float64, types.float64)]  # noqa: RUF012


cudadecl.registry.register_global(twice, types.Function(_TwiceTemplate))


@cudaimpl.lower(twice, types.int32)
def _twice_of_integer(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
    return builder.shl(args[0], ir.Constant(args[0].type, 1))


@cudaimpl.lower(twice, types.float64)
def _twice_of_float(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
    return builder.fadd(args[0], args[0])


def test_code_in_the_registries_of_numba_cuda_is_called() -> None:
    def kernel(out: Any, x: Any) -> None:
        out[0] = twice(x[0])
        out[1] = twice(np.int32(21))

    out = np.zeros(2)
    run(kernel, out, np.array([1.25]))
    np.testing.assert_array_equal(out, [2.5, 42])


def test_operators_and_functions_of_python_take_a_type_of_the_program() -> None:
    assert output_of(_OPERATORS).split() == ["18.0", "3.0", "50.0", "4.0", "16.0"]


_OPERATORS = """
# In a separate process: kernels cannot be stored on disk beside such overloads.
import math, operator
import numpy as np
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import (
    core_models, lower_builtin, make_attribute_wrapper, overload, register_model, type_callable
)
from nbrt.backends.cpu.launch import CpuProgram

class Pair: ...

class PairType(types.Type):
    def __init__(self):
        super().__init__(name="Pair")

pair_type = PairType()

@register_model(PairType)
class Model(core_models.StructModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, [("lo", types.float64), ("hi", types.float64)])

make_attribute_wrapper(PairType, "lo", "lo")
make_attribute_wrapper(PairType, "hi", "hi")

@type_callable(Pair)
def type_pair(context):
    return lambda lo, hi: pair_type

@lower_builtin(Pair, types.Float, types.Float)
def make_pair(context, builder, sig, args):
    pair = cgutils.create_struct_proxy(pair_type)(context, builder)
    pair.lo, pair.hi = args
    return pair._getvalue()

@overload(operator.add)
def add(a, b):
    if a is pair_type and b is pair_type:
        return lambda a, b: Pair(a.lo + b.lo, a.hi + b.hi)

@overload(math.sqrt)
def sqrt(x):
    if x is pair_type:
        return lambda x: Pair(math.sqrt(x.lo), math.sqrt(x.hi))

@overload(max)
def maximum(a, b):
    if a is pair_type:
        return lambda a, b: max(a.hi, b.hi)

def kernel(out, x):
    pair = Pair(x[0], x[1]) + Pair(1.0, 2.0)
    out[0] = pair.hi
    out[1] = math.sqrt(pair).lo
    out[2] = max(pair, Pair(0.0, 50.0))
    out[3] = math.sqrt(x[1])
    out[4] = max(x[0], x[1])

out = np.zeros(5)
CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(out, np.array([8.0, 16.0]))
print(*out)
"""


# In a separate process: methods of arrays are a part of the keys of all kernels of their process.
_METHODS = """
import numba.extending
import numpy as np
from numba import cuda
from numba.core import types
from numba.cuda.extending import overload_method
from nbrt.backends.cpu.launch import CpuProgram


@overload_method(types.Array, "cuda_total")
def _total(array, start=0):
    def implementation(array, start=0):
        total = start
        for i in range(array.size):
            total += array[i]
        return total

    return implementation


@numba.extending.overload_attribute(types.Array, "cuda_last", target="cuda")
def _last(array):
    return lambda array: array[array.size - 1]


@overload_method(types.Array, "cuda_reversed_by_block")
def _reversed_by_block(array, i):
    def implementation(array, i):
        shared = cuda.shared.array(32, types.float64)
        shared[i] = array[i]
        cuda.syncthreads()
        return shared[31 - i]

    return implementation


def sums(out, x):
    out[0] = x.cuda_total()
    out[1] = x.cuda_total(start=10.0)
    out[2] = x.cuda_last


def exchange(out, x):
    i = cuda.threadIdx.x
    if i < out.size:
        out[i] = x.cuda_reversed_by_block(i)


out = np.zeros(3)
CpuProgram(sums, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(out, np.arange(5.0))
np.testing.assert_array_equal(out, [10, 20, 4])
out = np.zeros(32)
CpuProgram(exchange, cache=False).plan(0, (1, 1, 1), (32, 1, 1))(out, np.arange(32.0))
np.testing.assert_array_equal(out, np.arange(32.0)[::-1])
print("done")
"""


def test_methods_and_attributes_of_arrays_are_found_and_a_barrier_in_one_is_one() -> None:
    assert output_of(_METHODS) == "done\n"


@register_jitable  # type: ignore[untyped-decorator]
def plus_one(x: Any) -> Any:
    return x + 1


@intrinsic  # type: ignore[untyped-decorator]
def ones_complement(_typing: Any, x: Any) -> Any:
    return signature(x, x), lambda _context, builder, _sig, args: builder.not_(args[0])


def test_jitable_functions_and_intrinsics_are_called() -> None:
    def kernel(out: Any) -> None:
        out[0] = plus_one(ones_complement(np.int64(4)))

    out = np.zeros(1, np.int64)
    run(kernel, out)
    assert out[0] == -4


# -- registries of the program, and targets --------------------------------------------------------


def test_a_registry_in_the_contexts_of_numba_cuda_is_read() -> None:
    assert output_of(_OWN_REGISTRY).split() == ["12.0"]


_OWN_REGISTRY = """
import numpy as np
from numba import cuda
from numba.core import types
from numba.cuda import descriptor
from numba.cuda.core.imputils import Registry as Lowerings
from numba.cuda.typing.templates import ConcreteTemplate, Registry as Typings, signature
from nbrt.backends.cpu.launch import CpuProgram

def thrice(x): ...

typings, lowerings = Typings(), Lowerings("program")

class Template(ConcreteTemplate):
    key = thrice
    cases = [signature(types.float64, types.float64)]

typings.register_global(thrice, types.Function(Template))

@lowerings.lower(thrice, types.float64)
def lower(context, builder, sig, args):
    return builder.fmul(args[0], args[0].type(3.0))

descriptor.cuda_target.typing_context.install_registry(typings)
class Target:
    _registries = [lowerings]
# The context of code needs a driver; it lists its registries as the one of types does.
descriptor.cuda_target._targetctx = Target()

def kernel(out):
    out[0] = thrice(4.0)

out = np.zeros(1)
CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(out)
print(out[0])
"""


def test_overloads_for_other_targets_are_not_taken() -> None:
    def chosen() -> Any: ...

    numba.extending.overload(chosen, target="cpu")(lambda: lambda: 1)
    numba.extending.overload(chosen, target="generic")(lambda: lambda: 2)

    def kernel(out: Any) -> None:
        out[0] = chosen()

    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 2  # as numba-cuda, which does not know those for CPUs


def test_registrations_for_cuda_are_not_seen_by_other_code() -> None:
    @numba.njit  # type: ignore[untyped-decorator]
    def host(x: Any) -> Any:
        return x.cuda_last

    with pytest.raises(numba.errors.TypingError):
        host(np.ones(3))


# -- code on disk ----------------------------------------------------------------------------------

_STORED = """
import sys
import numpy as np
from numba import cuda
from numba.core import types
from numba.cuda.extending import overload_method
from nbrt.backends.cpu.launch import CpuProgram

FACTOR = float(sys.argv[1])

@overload_method(types.Array, "scaled")
def scaled(array, i):
    def implementation(array, i):
        return array[i] * FACTOR
    return implementation

def kernel(out):
    out[0] = out.scaled(0)

out = np.ones(1)
CpuProgram(kernel).plan(0, (1, 1, 1), (1, 1, 1))(out)
print(out[0])
"""


def test_code_on_disk_depends_on_the_overloads(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_STORED)
    for factor in ("2.0", "3.0", "2.0"):
        done = subprocess.run(
            [sys.executable, script, factor],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NBRT_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == factor
    assert len(list(tmp_path.rglob("*.nbrtc"))) == 2


# -- overloads that read the index of their thread -------------------------------------------------


# In a separate process: an overload that calls an overloaded function of the program has no hash,
# and then no kernel of the process is in the disk cache.
_INDEXED = """
import numpy as np
from numba import cuda
from numba.core import types
from numba.cuda.extending import overload, overload_attribute, overload_method
from nbrt.backends.cpu.launch import CpuProgram


@overload_method(types.Array, "cuda_own")
def _own(array):
    def implementation(array):
        return array[cuda.grid(1)] * 100 + offset_of_thread()

    return implementation


@overload_attribute(types.Array, "cuda_next")
def _next(array):
    def implementation(array):
        return array[(cuda.threadIdx.x + 1) % cuda.blockDim.x]

    return implementation


def block_and_lane(scale=1):
    raise NotImplementedError


@overload(block_and_lane)
def _block_and_lane(scale=1):
    def implementation(scale=1):
        return scale * (cuda.blockIdx.x * 10 + cuda.laneid)

    return implementation


@cuda.jit(device=True)
def offset_of_thread():
    return block_and_lane(scale=0.5)


@cuda.jit(device=True)
def own_of(array):
    return array.cuda_own()


def kernel(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0] = x.cuda_own()
        out[i, 1] = x.cuda_next
        out[i, 2] = block_and_lane() + block_and_lane(100)
        out[i, 3] = own_of(x)


x, out = np.arange(12.0), np.zeros((11, 4))
for threads in (4, 3):  # the shape of the block is a part of the type of the hidden argument
    program = CpuProgram(kernel, cache=False)
    program.plan(0, (12 // threads, 1, 1), (threads, 1, 1))(out, x)
    block, thread = np.divmod(np.arange(11), threads)
    number = block * 10 + thread
    own = x[:11] * 100 + number / 2
    expected = np.stack([own, x[(thread + 1) % threads], 101 * number, own], axis=1)
    np.testing.assert_array_equal(out, expected)
print("done")
"""


def test_overloads_read_the_index_of_their_thread() -> None:
    assert output_of(_INDEXED) == "done\n"


# -- overloads that numba-cuda may inline ----------------------------------------------------------


def first_column(_array: Any) -> Any:
    """Stand for code that only kernels have."""


@overload(first_column, inline="always")
def _first_column(array: Any) -> Any:
    def implementation(array: Any) -> Any:
        return array[:, 0]

    return implementation


def own_array() -> Any:
    """Stand for code that only kernels have."""


@overload(own_array, inline="always")
def _own_array() -> Any:
    def implementation() -> Any:
        return cuda.local.array(3, types.float64)

    return implementation


def test_an_inlined_overload_returns_a_view() -> None:
    def kernel(table: Any) -> None:
        column = first_column(table)
        column[1] += 10

    table = np.zeros((3, 2))
    run(kernel, table)
    np.testing.assert_array_equal(table, [[0, 0], [10, 0], [0, 0]])


def test_an_overload_does_not_return_its_own_array() -> None:
    def kernel(out: Any) -> None:
        out[0] = own_array()[0]

    with pytest.raises(UnsupportedConstructError, match="let the kernel declare it"):
        run(kernel, np.zeros(1))


def test_variables_without_a_value_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(out: Any, n: Any) -> None:
        if n > 0:
            value = 1.0
        out[0] = value

    monkeypatch.setattr(cuda_config, "ALWAYS_WARN_UNINIT_VAR", 1)
    with pytest.warns(NumbaWarning, match="Detected uninitialized variable value"):
        run(kernel, np.zeros(1), 1)
