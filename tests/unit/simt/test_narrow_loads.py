"""Loads of the stack, as narrow as their uses need: random functions before and after, kernels."""

from __future__ import annotations

import ctypes
import random
import re
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.cpu.simt.llvm.narrow_loads import with_narrow_loads

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = 8
KIND = f"<{LANES} x i32>"
STACK = 32
"""Elements on the stack of a function, and of its arguments."""


def ordered(first: str, second: str, order: list[int]) -> str:
    text = ", ".join(f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in order)
    return f"shufflevector {KIND} {first}, {KIND} {second}, <{LANES} x i32> <{text}>"


def first_lanes(count: int, first: str, second: str) -> str:
    """Return the first lanes of one vector, and the others of another one."""
    order = [lane if lane < count else LANES + lane for lane in range(LANES)]
    return ordered(first, second, order)


def module(body: list[str]) -> str:
    """Return a module with a function that computes on a copy of its first array on the stack."""
    lines = "\n".join(f"  {line}" for line in body)
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @f(ptr %from, ptr %to) {{
entry:
  %stack = alloca [{STACK} x i32], align 64
  call void @llvm.memcpy.p0.p0.i64(ptr align 64 %stack, ptr %from, i64 {4 * STACK}, i1 false)
  %v0 = load {KIND}, ptr %from, align 4
{lines}
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr align 64 %stack, i64 {4 * STACK}, i1 false)
  ret void
}}
"""


def run(text: str, values: Any) -> Any:
    """Compile a module for this machine without optimisation; return what its function stores."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(opt=0)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(engine.get_function_address("f"))
    found = np.zeros(STACK + 1, np.int32)
    function(values.ctypes.data, found.ctypes.data)
    return found


def at(name: str, place: int) -> str:
    return f"%{name} = getelementptr inbounds i32, ptr %stack, i64 {place}"


def random_body(rng: random.Random) -> list[str]:
    """Return instructions: loads, operations and shuffles, the results of some of them stored."""
    body, values = list[str](), ["%v0"]
    for step in range(1, 30):
        x, y = rng.choice(values), rng.choice(values)
        place = rng.randrange(STACK - LANES + 1)
        value = f"%v{step}"
        choice = rng.randrange(8)
        if choice < 2:
            body += [at(f"p{step}", place), f"{value} = load {KIND}, ptr %p{step}, align 4"]
        elif choice < 4:
            body.append(f"{value} = {rng.choice(('add', 'sub', 'mul', 'xor'))} {KIND} {x}, {y}")
        elif choice == 4:
            body.append(f"{value} = {first_lanes(rng.randrange(1, LANES), x, y)}")
        elif choice == 5:
            order = [rng.randrange(2 * LANES) for _ in range(LANES)]
            body.append(f"{value} = {ordered(x, y, order)}")
        elif choice == 6:
            body += [
                f"%e{step} = extractelement {KIND} {x}, i64 {rng.randrange(LANES)}",
                f"{value} = insertelement {KIND} {y}, i32 %e{step}, i64 {rng.randrange(LANES)}",
            ]
        else:
            body += [
                f"%c{step} = icmp slt {KIND} {x}, {y}",
                f"{value} = select <{LANES} x i1> %c{step}, {KIND} {y}, {KIND} {x}",
            ]
        values.append(value)
        if rng.random() < 0.3:
            body += [at(f"q{step}", place), f"store {KIND} {value}, ptr %q{step}, align 4"]
    return [*body, f"store {KIND} {values[-1]}, ptr %stack, align 4"]


def test_random_functions_give_the_same() -> None:
    rng, changed = random.Random(1), 0
    values = np.random.default_rng(1).integers(-(2**31), 2**31, STACK, np.int32)
    for _ in range(300):
        before = module(random_body(rng))
        after = with_narrow_loads(before)
        if after is not None:
            changed += 1
            np.testing.assert_array_equal(run(after, values), run(before, values))
    assert changed > 50


def halving(*, divides: bool = False) -> list[str]:
    """Return two steps of a sum by halves, with loads behind the first and the second half."""
    code = "sdiv" if divides else "add"
    return [
        at("half", LANES // 2),
        f"%right = load {KIND}, ptr %half, align 16",
        f"%sum = {code} {KIND} %v0, %right",
        f"%step = {first_lanes(LANES // 2, '%sum', '%v0')}",
        f"store {KIND} %step, ptr %stack, align 64",
    ]


def widths(text: str | None) -> list[int]:
    """Return the lanes of the loads from the stack."""
    assert text is not None
    return [int(lanes) for lanes in re.findall(r"= load <(\d+) x i32>, ptr %(?!from)", text)]


def test_a_load_has_the_lanes_that_are_used() -> None:
    assert widths(with_narrow_loads(module(halving()))) == [LANES // 2]


@pytest.mark.parametrize(
    "use",
    [
        f"store {KIND} %right, ptr %to, align 4",
        f"%last = extractelement {KIND} %right, i64 {LANES - 1}",
        f"%bits = bitcast {KIND} %right to i256",
        f"%all = call i32 @llvm.vector.reduce.add.v8i32({KIND} %right)",
    ],
)
def test_another_use_needs_all_lanes(use: str) -> None:
    declaration = f"declare i32 @llvm.vector.reduce.add.v8i32({KIND})\n"
    assert with_narrow_loads(declaration + module([*halving(), use])) is None


def test_divisions_of_integers_need_all_lanes() -> None:
    """One by a lane without a value could trap."""
    assert with_narrow_loads(module(halving(divides=True))) is None


def test_values_of_loops_need_all_lanes() -> None:
    """The value of an iteration is read above its definition, in the next one."""
    body = [
        at("half", LANES // 2),
        "br label %loop",
        "loop:",
        f"%last = phi {KIND} [ %v0, %entry ], [ %right, %loop ]",
        "%i = phi i32 [ 0, %entry ], [ %next, %loop ]",
        f"%right = load {KIND}, ptr %half, align 16",
        f"%sum = add {KIND} %v0, %right",
        f"%step = {first_lanes(LANES // 2, '%sum', '%last')}",
        f"store {KIND} %step, ptr %stack, align 64",
        "%next = add i32 %i, 1",
        "%more = icmp slt i32 %next, 3",
        "br i1 %more, label %loop, label %end",
        "end:",
    ]
    assert with_narrow_loads(module(body)) is None


def test_values_that_blocks_use_above_their_definition_need_all_lanes() -> None:
    """LLVM writes blocks in any order: an operation may come behind the use of its result."""
    body = [
        at("half", LANES // 2),
        "br label %second",
        "first:",
        f"store {KIND} %sum, ptr %stack, align 64",
        "br label %end",
        "second:",
        f"%right = load {KIND}, ptr %half, align 16",
        f"%sum = add {KIND} %v0, %right",
        f"%step = {first_lanes(LANES // 2, '%sum', '%v0')}",
        f"store {KIND} %step, ptr %to, align 4",
        "br label %first",
        "end:",
    ]
    assert with_narrow_loads(module(body)) is None


def test_other_memory_is_loaded_as_before() -> None:
    body = [line.replace("%stack, i64", "%from, i64") for line in halving()]
    assert with_narrow_loads(module(body)) is None


def _sum_kernel(size: int) -> Callable[..., Any]:
    @nbrt.kernel
    def sums(out: Any, x: Any) -> None:
        parts = cuda.shared.array(size, x.dtype)
        t = cuda.threadIdx.x
        parts[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        half = size // 2
        while half > 0:
            if t < half:
                parts[t] += parts[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            out[cuda.blockIdx.x] = parts[0]
        out[cuda.gridDim.x + cuda.grid(1)] = parts[t]

    return sums


def _halved(rows: Any) -> Any:
    """Return the shared memory of each block after a sum by halves, with NumPy."""
    rows = rows.copy()
    half = rows.shape[1] // 2
    while half > 0:
        rows[:, :half] += rows[:, half : 2 * half]
        half //= 2
    return rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.int16])
@pytest.mark.parametrize("size", [2, 8, 64, 256])
def test_sums_by_halves(size: int, dtype: Any) -> None:
    x = (np.random.default_rng(size).standard_normal((5, size)) * 1000).astype(dtype)
    out = np.zeros(5 + x.size, dtype)
    _sum_kernel(size)[5, size](out, x.ravel())
    expected = _halved(x)
    np.testing.assert_array_equal(out[5:].reshape(x.shape), expected)
    np.testing.assert_array_equal(out[:5], expected[:, 0])


def test_sums_by_halves_stay_in_registers() -> None:
    """Without what keeps the shared memory for its readers, nothing is stored but the sums."""

    @nbrt.kernel
    def sums(out: Any, x: Any) -> None:
        parts = cuda.shared.array(256, np.float32)
        t = cuda.threadIdx.x
        parts[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        half = 128
        while half > 0:
            if t < half:
                parts[t] += parts[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            out[cuda.blockIdx.x] = parts[0]

    report = sums[4, 256].inspect("float32[::1]", "float32[::1]")
    assert not re.search(r"store <\d+ x float>", report.llvm)
