"""Vector operations without an instruction in AVX2, rewritten: against NumPy and Python's ints."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.cpu.simt.llvm.vector_operations import with_fewer_instructions

if TYPE_CHECKING:
    from collections.abc import Callable

AVX2, AVX512 = "+avx2,-avx512vl", "+avx2,+avx512cd,+avx512vl"
ORDER = "i32 0, i32 4, i32 1, i32 5, i32 2, i32 6, i32 3, i32 7"


def count_call(lanes: int, bits: int, is_poison: str) -> str:
    kind = f"<{lanes} x i{bits}>"
    return (
        f"%r = tail call range(i{bits} 0, {bits + 1}) {kind} "
        f"@llvm.ctlz.v{lanes}i{bits}({kind} %x, i1 {is_poison})"
    )


def module(body: str, kind: str, result: str) -> str:
    """Return a module with a function that stores %r, of %x and %y in memory."""
    return f"""
declare <4 x i32> @llvm.ctlz.v4i32(<4 x i32>, i1)
declare <8 x i32> @llvm.ctlz.v8i32(<8 x i32>, i1)
declare <2 x i64> @llvm.ctlz.v2i64(<2 x i64>, i1)
declare <4 x i64> @llvm.ctlz.v4i64(<4 x i64>, i1)
declare <4 x i64> @llvm.fshl.v4i64(<4 x i64>, <4 x i64>, <4 x i64>)
declare <4 x i64> @llvm.fshr.v4i64(<4 x i64>, <4 x i64>, <4 x i64>)
define void @f(ptr %from, ptr %other, ptr %to) {{
  %x = load {kind}, ptr %from, align 1
  %y = load {kind}, ptr %other, align 1
  {body}
  store {result} %r, ptr %to, align 1
  ret void
}}
"""


def compiled(text: str) -> tuple[Callable[[Any, Any, Any], None], Any]:
    """Compile a module for this machine; return its function of three arrays."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(engine.get_function_address("f"))
    return lambda x, y, to: function(x.ctypes.data, y.ctypes.data, to.ctypes.data), engine


def edges(bits: int) -> np.ndarray[Any, Any]:
    """Return the numbers next to powers of two, and random ones of all magnitudes."""
    near = {(1 << t) + step & (1 << bits) - 1 for t in range(bits + 1) for step in (-2, -1, 0, 1)}
    ones = {(1 << bits) - (1 << t) for t in range(bits + 1)} - {1 << bits}
    halves = {3 << t for t in range(bits - 2)}
    rng = np.random.default_rng(bits)
    random = {
        int(x) >> int(s)
        for x, s in zip(rng.integers(0, 2**63, 4096), rng.integers(0, 63, 4096), strict=True)
    }
    numbers = sorted(near | ones | halves | {x & (1 << bits) - 1 for x in random})
    numbers += [0] * (-len(numbers) % 8)
    return np.array(numbers, f"uint{bits}")


@pytest.mark.parametrize("is_poison", ["false", "true"])
@pytest.mark.parametrize(("lanes", "bits"), [(4, 32), (8, 32), (2, 64), (4, 64)])
def test_leading_zeros(lanes: int, bits: int, is_poison: str) -> None:
    kind = f"<{lanes} x i{bits}>"
    text = with_fewer_instructions(module(count_call(lanes, bits, is_poison), kind, kind), AVX2)
    assert not re.search(r"call [^\n]*@llvm\.ctlz", text)
    count, _engine = compiled(text)
    numbers = edges(bits)
    if is_poison == "true":
        numbers = np.where(numbers == 0, 1, numbers).astype(numbers.dtype)
    found = np.zeros_like(numbers)
    for i in range(0, numbers.size, lanes):
        count(numbers[i:], numbers, found[i:])
    assert found.tolist() == [bits - int(number).bit_length() for number in numbers]


@pytest.mark.parametrize("way", ["fshl", "fshr"])
def test_rotations_by_half(way: str) -> None:
    kind = "<4 x i64>"
    call = (
        f"%r = tail call {kind} @llvm.{way}.v4i64({kind} %x, {kind} %SECOND, {kind} splat (i64 32))"
    )
    text = with_fewer_instructions(module(call.replace("%SECOND", "%x"), kind, kind), AVX2)
    assert not re.search(r"call [^\n]*@llvm\.fsh", text)
    rotate, _engine = compiled(text)
    values = np.random.default_rng(1).integers(0, 2**64, 4, np.uint64)
    found = np.zeros_like(values)
    rotate(values, values, found)
    assert found.tolist() == [(int(v) >> 32) | (int(v) << 32) % 2**64 for v in values]
    shift = module(call.replace("%SECOND", "%y"), kind, kind)
    assert with_fewer_instructions(shift, AVX2) == shift


@pytest.mark.parametrize("kind", ["i64", "double"])
def test_interleaved_vectors(kind: str) -> None:
    four = f"<4 x {kind}>"
    body = f"%r = shufflevector {four} %x, {four} %y, <8 x i32> <{ORDER}>"
    text = with_fewer_instructions(module(body, four, f"<8 x {kind}>"), AVX2)
    assert text.count("shufflevector") == 5
    interleave, _engine = compiled(text)
    x, y, found = np.arange(4.0), np.arange(10.0, 14.0), np.zeros(8)
    interleave(x, y, found)
    assert found.tolist() == [0, 10, 1, 11, 2, 12, 3, 13]


@pytest.mark.parametrize("lanes", [16, 32])
def test_upper_halves_of_lanes(lanes: int) -> None:
    kind, half = f"<{lanes} x i64>", f"<{lanes} x i32>"
    body = f"%shifted = lshr {kind} %x, splat (i64 32)\n  %r = trunc nuw {kind} %shifted to {half}"
    text = with_fewer_instructions(module(body, kind, half), AVX512)
    assert "trunc" not in text
    upper, _engine = compiled(text)
    values = np.random.default_rng(2).integers(0, 2**64, lanes, np.uint64)
    found = np.zeros(lanes, np.uint32)
    upper(values, values, found)
    assert found.tolist() == [int(value) >> 32 for value in values]


@pytest.mark.parametrize(
    "body",
    [
        "%h = lshr <8 x i64> %x, splat (i64 32)\n  %r = trunc <8 x i64> %h to <8 x i32>",
        "%h = lshr <16 x i64> %x, splat (i64 31)\n  %r = trunc <16 x i64> %h to <16 x i32>",
        "%r = trunc <16 x i64> %x to <16 x i32>",
    ],
)
def test_other_narrowed_lanes_are_kept(body: str) -> None:
    lanes = 8 if "<8 x" in body else 16
    text = module(body, f"<{lanes} x i64>", f"<{lanes} x i32>")
    assert with_fewer_instructions(text, AVX512) == text


@pytest.mark.parametrize("features", [AVX512, "+sse4.2,-avx2,-avx512vl", ""])
def test_other_processors_keep_their_code(features: str) -> None:
    kind = "<8 x i32>"
    text = module(count_call(8, 32, "false"), kind, kind)
    assert with_fewer_instructions(text, features) == text


@nbrt.kernel
def zeros_32(x: Any, to: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        to[i] = cuda.clz(x[i])


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("block", [1, 64, 256])
def test_counts_in_kernels(bits: int, block: int) -> None:
    numbers = edges(bits)[:-3]
    found = np.zeros(numbers.size, np.int64)
    zeros_32[-(-numbers.size // block), block](numbers, found)
    assert found.tolist() == [bits - int(number).bit_length() for number in numbers]
