"""Builtins that become markers: their names, types and the note that a function uses them."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.frontend.pipeline import (
    ThreadDispatcher,
    _WholeKernelCompiler,
    dialect_uses,
)
from nbrt.backends.cpu.simt.frontend.source import with_context
from nbrt.backends.cpu.simt.placeholders import PLACE, shared_extent
from nbrt.backends.cpu.simt.thread_context import SimtContextType

BLOCK = SimtContextType((32, 1, 1))
RECORD = np.dtype([("a", np.int32), ("b", np.float64)], align=True)


def compiled(kernel: Any, *arguments: Any) -> Any:
    return ThreadDispatcher(with_context(kernel), _WholeKernelCompiler).result((BLOCK, *arguments))


def calls(kernel: Any, *arguments: Any) -> list[str]:
    """Return the markers that a kernel calls, except places: ``result name(types)``."""
    text = compiled(kernel, *arguments).library.get_llvm_str()
    found = re.findall(r"call (\w+) @\"?(nbrt\.[\w.]+)\"?\(([^)]*)\)", text)
    return [
        f"{result} {name}({', '.join(part.split()[0] for part in given.split(',') if part)})"
        for result, name, given in found
        if not name.startswith(PLACE)
    ]


def uses(kernel: Any, *arguments: Any) -> set[str]:
    return set().union(*(use.markers for use in dialect_uses(compiled(kernel, *arguments))))


F32, F64, I32, I64 = types.float32[::1], types.float64[::1], types.int32[::1], types.int64[::1]


def test_barriers() -> None:
    def kernel(x: Any) -> None:
        cuda.syncthreads()
        cuda.syncwarp()
        cuda.syncwarp(x[0])
        x[0] = cuda.syncthreads_count(x[1])
        x[1] = cuda.syncthreads_and(np.uint8(3)) + cuda.syncthreads_or(x[2])

    assert calls(kernel, I64) == [
        "void nbrt.barrier()",
        "void nbrt.warp.sync(i32)",
        "void nbrt.warp.sync(i32)",
        "i32 nbrt.barrier.count(i32)",
        "i32 nbrt.barrier.and(i32)",
        "i32 nbrt.barrier.or(i32)",
    ]
    assert uses(kernel, I64) == {"barrier", "warp"}


@pytest.mark.parametrize(
    ("array", "width"), [(I32, "i32"), (I64, "i64"), (F32, "i32"), (F64, "i64")]
)
def test_shuffles_and_matches(array: Any, width: str) -> None:
    def kernel(x: Any, y: Any) -> None:
        x[0] = cuda.shfl_sync(-1, x[1], 3)
        x[1] = cuda.shfl_up_sync(0xFFFFFFFF, x[2], np.int32(1))
        x[2] = cuda.shfl_down_sync(np.uint32(15), x[3], y[0])
        x[3] = cuda.shfl_xor_sync(-1, x[3], 1)
        y[0] = cuda.match_any_sync(-1, x[3])
        y[1], same = cuda.match_all_sync(-1, x[3])
        y[2] = same

    modes = ["idx", "up", "down", "xor"]
    shuffles = [f"{width} nbrt.shfl.{mode}.{width}(i32, {width}, i32)" for mode in modes]
    matches = [f"i32 nbrt.match.{kind}.{width}(i32, {width})" for kind in ("any", "all")]
    assert calls(kernel, array, I64) == shuffles + matches
    assert uses(kernel, array, I64) == {"warp"}


def test_shuffles_refuse_what_cuda_refuses() -> None:
    def kernel(x: Any) -> None:
        x[0] = cuda.shfl_sync(-1, x[1], 3)

    for array in (types.uint32[::1], types.int16[::1], types.complex64[::1]):
        with pytest.raises(TypingError, match="int32, int64, float32 and float64"):
            compiled(kernel, array)


def test_votes() -> None:
    def kernel(x: Any) -> None:
        if cuda.all_sync(-1, x[0] > 3):
            x[0] = 1
        x[1] = cuda.any_sync(-1, x[0])
        x[2] = cuda.eq_sync(-1, x[0]) and True
        x[3] = cuda.ballot_sync(-1, True)
        x[4] = cuda.activemask()

    assert calls(kernel, I64) == [
        "i32 nbrt.vote.all(i32, i32)",
        "i32 nbrt.vote.any(i32, i32)",
        "i32 nbrt.vote.eq(i32, i32)",
        "i32 nbrt.vote.ballot(i32, i32)",
        "i32 nbrt.activemask()",
    ]


def test_the_mask_of_lower_lanes_needs_no_marker() -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(1)] = cuda.lanemask_lt()

    assert calls(kernel, I64) == []
    assert uses(kernel, I64) == set()


def test_grid_groups() -> None:
    def kernel(x: Any) -> None:
        grid = cuda.cg.this_grid()
        grid.sync()
        x[0] = cuda.cg.this_grid().sync()

    assert calls(kernel, I64) == ["void nbrt.grid.sync()"] * 2
    assert uses(kernel, I64) == {"grid"}


def names(kernel: Any, *arguments: Any) -> list[str]:
    return [call.split()[1].partition("(")[0] for call in calls(kernel, *arguments)]


def test_shared_arrays_have_a_name_each_with_size_and_alignment() -> None:
    def kernel(x: Any) -> None:
        a, b = cuda.shared.array(8, numba.int32), cuda.shared.array(8, numba.int32)
        c = cuda.shared.array((2, 3, 4), np.float64, alignment=256)
        d = cuda.shared.array(shape=(5,), dtype=RECORD)
        e = cuda.shared.array(7, numba.boolean)
        a[0], b[0], c[1, 2, 3], d[0].b, e[0] = 1, 2, 3, 4, True
        x[0] = a[0] + b[0] + c[1, 2, 3] + d[0].b + e[0]

    found = names(kernel, I64)
    assert len(set(found)) == 5
    assert [shared_extent(name) for name in found] == [
        (32, 64), (32, 64), (192, 256), (80, 64), (7, 64),
    ]  # fmt: skip
    assert uses(kernel, I64) == {"shared"}


def test_dynamic_shared_arrays_begin_at_one_place() -> None:
    def kernel(x: Any) -> None:
        a = cuda.shared.array(0, np.float64)
        b = cuda.shared.array(shape=0, dtype=np.int16)
        x[0] = a.size
        x[1] = b.size

    found = names(kernel, I64)
    assert sorted(set(found)) == ["nbrt.shared.bytes", "nbrt.shared.dynamic"]


@cuda.jit(device=True)
def through_shared(x: Any) -> Any:
    kept = cuda.shared.array(32, numba.float64)
    kept[cuda.threadIdx.x] = x
    cuda.syncthreads()
    return kept[31 - cuda.threadIdx.x]


def make_device(offset: int) -> Any:
    @cuda.jit(device=True)
    def device(x: Any) -> Any:
        kept = cuda.shared.array(32, numba.float64)
        kept[cuda.threadIdx.x] = x + offset
        return kept[0]

    return device


def shared_arrays(result: Any) -> set[str]:
    """Return the symbols of the shared arrays in a compiled function and those that it calls."""
    whole = str(result.library._get_module_for_linking())
    return set(re.findall(r"nbrt\.shared[\w.]+", whole))


def test_a_device_function_has_one_array_for_all_its_calls() -> None:
    def kernel(x: Any) -> None:
        x[0] = through_shared(x[1]) + through_shared(x[2])

    result = compiled(kernel, F64)
    own, *callees = dialect_uses(result)
    assert own.markers == set()
    assert {frozenset(use.markers) for use in callees} == {frozenset({"barrier", "shared"})}
    assert len(shared_arrays(result)) == 1


def test_functions_made_from_one_text_have_an_array_each() -> None:
    first, second = make_device(1), make_device(2)

    def kernel(x: Any) -> None:
        x[0] = first(x[1]) + second(x[1])

    assert len(shared_arrays(compiled(kernel, F64))) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cuda.shared.array(x.size, numba.int32)", "known at compile time"),
        ("cuda.shared.array((2, 0), numba.int32)", "at least one element"),
        ("cuda.local.array(0, numba.int32)", "at least one element"),
        ("cuda.shared.array(4, numba.int32, alignment=24)", "power of two"),
        ("cuda.local.array(4, numba.int32, alignment=4)", "multiple of 8"),
        ("cuda.shared.array(4, 5)", "expected a data type"),
    ],
)
def test_arrays_that_cannot_be_are_refused(call: str, message: str) -> None:
    scope: dict[str, Any] = {"cuda": cuda, "numba": numba}
    exec(f"def kernel(x):\n    a = {call}\n    x[0] = a.size\n", scope)
    with pytest.raises(numba.core.errors.NumbaError, match=message):
        compiled(scope["kernel"], I64)


def test_sites_are_the_same_in_every_process() -> None:
    program = """
import numba
from numba import cuda, types
from nbrt.backends.cpu.simt.thread_context import SimtContextType
from nbrt.backends.cpu.simt.frontend.pipeline import ThreadDispatcher, _WholeKernelCompiler
from nbrt.backends.cpu.simt.frontend.source import with_context
import re
def kernel(x):
    a = cuda.shared.array(8, numba.int32)
    a[0] = x[0]
    x[0] = a[1]
arguments = (SimtContextType((32, 1, 1)), types.int64[::1])
result = ThreadDispatcher(with_context(kernel), _WholeKernelCompiler).result(arguments)
print(re.search(r"nbrt.shared[.\\w]+", result.library.get_llvm_str()).group())
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    outputs = {
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("nbrt.shared.32.64.kernel_1_")


@cuda.jit(device=True)
def reversed_in_block(x: Any) -> Any:
    kept = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    kept[t] = x
    cuda.syncthreads()
    found = kept[cuda.blockDim.x - 1 - t]
    cuda.syncthreads()
    return found


def test_a_block_does_what_the_markers_stand_for() -> None:
    def kernel(a: Any, out: Any) -> None:
        i, t = cuda.grid(1), cuda.threadIdx.x
        p, q = cuda.shared.array(64, numba.float32), cuda.shared.array(64, numba.float32)
        counts = cuda.shared.array(4, numba.int32)
        if t < 4:
            counts[t] = 0
        p[t], q[t] = a[i], 2 * a[i]
        cuda.syncthreads()
        cuda.atomic.add(counts, t % 4, 1)
        out[2, i] = cuda.syncthreads_count(t % 3)
        out[0, i] = reversed_in_block(a[i]) + reversed_in_block(1000 * a[i])
        out[1, i] = p[63 - t] + q[63 - t]
        out[3, i] = counts[t % 4]
        out[4, i] = cuda.shfl_down_sync(0xFFFFFFFF, a[i], 1)
        out[5, i] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, t % 2) & cuda.lanemask_lt())

    a, out = np.arange(128, dtype=np.float32), np.zeros((6, 128), np.float32)
    CpuProgram(kernel, cache=False).plan(0, (2, 1, 1), (64, 1, 1))(a, out)
    back, lane = a.reshape(2, 64)[:, ::-1].ravel(), np.arange(128) % 32
    np.testing.assert_array_equal(out[0], back + 1000 * back)
    np.testing.assert_array_equal(out[1], 3 * back)
    assert (out[2] == np.count_nonzero(np.arange(64) % 3)).all()
    assert (out[3] == 16).all()
    np.testing.assert_array_equal(out[4], np.where(lane == 31, a, a + 1))
    np.testing.assert_array_equal(out[5], lane // 2)
