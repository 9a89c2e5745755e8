"""Every kernel compiles for CUDA, and its floating point is what the source says."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from numba.core import types

from helpers.kernels import COMPUTE_CAPABILITIES, compile_ptx, numba_type
from nbrt_kernels import DRAWS, KERNELS

CAPABILITIES = pytest.mark.parametrize(
    "capability", COMPUTE_CAPABILITIES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}"
)
SIGNATURES = [
    pytest.param(spec.function, signature, id=f"{spec.name}-{signature[-1]}-{index}")
    for spec in KERNELS.values()
    for index, signature in enumerate(spec.signatures)
]
INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+\s+)?([a-z][a-z0-9_.]*)\s+([^;]+);", re.M)


def instructions(ptx: str) -> list[tuple[str, list[str]]]:
    found = INSTRUCTION.findall(ptx)
    return [(name, [part.strip() for part in operands.split(",")]) for name, operands in found]


def assert_ieee(ptx: str) -> None:
    """Only IEEE instructions, and no product that a compiler may contract with a sum."""
    program = instructions(ptx)
    products = set()
    for name, operands in program:
        if not name.endswith((".f32", ".f64")):
            continue
        assert ".approx" not in name
        assert ".ftz" not in name
        if name.startswith(("div", "sqrt", "rcp")):
            assert ".rn." in name
        if name.startswith("mul."):
            products.add(operands[0])
    for name, operands in program:
        if name.startswith(("add.f", "sub.f", "add.rn.f", "sub.rn.f")):
            assert not products & set(operands[1:]), f"{name} {operands} adds a product"


def draw_signature(spec) -> tuple:
    element = getattr(types, spec.dtype)
    parameter = element if spec.dtype.startswith("float") else types.uint64
    head = (types.Array(element, 1, "C"), types.uint32, types.uint32, types.uint64)
    return head + (parameter,) * len(spec.parameters)


@CAPABILITIES
@pytest.mark.parametrize(("kernel", "signature"), SIGNATURES)
def test_kernel_compiles(kernel, signature, capability):
    ptx = compile_ptx(kernel, tuple(numba_type(name) for name in signature), capability)
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    assert ".entry" in ptx
    assert_ieee(ptx)


@CAPABILITIES
@pytest.mark.parametrize("key", DRAWS, ids="-".join)
def test_draw_compiles(key, capability):
    spec = DRAWS[key]
    ptx = compile_ptx(spec.kernel, draw_signature(spec), capability)
    assert ".entry" in ptx
    assert_ieee(ptx)
    if key[0] in {"bits", "integers", "integers_wide"}:
        assert not any(name.endswith((".f32", ".f64")) for name, _ in instructions(ptx))


@pytest.mark.parametrize(
    ("key", "written"),
    [
        # Per block: a multiply-add for each of four uniforms.
        (("uniform", "float32"), 4),
        # Two uniforms, and one for each conversion of 64 bits.
        (("uniform", "float64"), 4),
        # Two pairs: log 9 + 3, sine 5, cosine 4, scaling 2.
        (("normal", "float32"), 2 * (12 + 9 + 2)),
        # One pair: log 20 + 3, sine 8, cosine 7, two conversions, scaling 2.
        (("normal", "float64"), 23 + 15 + 2 + 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_draw_has_the_multiply_adds_that_were_written(key, written):
    spec = DRAWS[key]
    names = Counter(
        n for n, _ in instructions(compile_ptx(spec.kernel, draw_signature(spec), (8, 0)))
    )
    fused = sum(count for name, count in names.items() if name.startswith("fma."))
    # The draw stands in two branches; a compiler may merge them.
    assert fused in {written, 2 * written}
