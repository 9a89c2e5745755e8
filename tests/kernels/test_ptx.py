"""Every kernel compiles for CUDA, and its floating point is what the source says."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import numpy as np
import pytest

from helpers.gpu_draws import is_compiled_for_gpus
from helpers.kernels import (
    COMPUTE_CAPABILITIES,
    compile_ptx,
    draws_of,
    fill_signature,
    numba_type,
)
from nbrt.backends.draw import Draw
from nbrt.index_sets import Region, RunTable
from nbrt.testing.draws import draw_cases
from nbrt_kernels import KERNELS
from nbrt_kernels.random import fills_of

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
        # Explicitly rounded, as in "mul.rn.f32", a product is never contracted.
        if name.startswith("mul.f"):
            products.add(operands[0])
    for name, operands in program:
        if name.startswith(("add.f", "sub.f", "add.rn.f", "sub.rn.f")):
            assert not products & set(operands[1:]), f"{name} {operands} adds a product"


@cache
def fill_ptx(kernel, signature, capability) -> str:
    return compile_ptx(kernel, signature, capability)


def draw_ptx(draw: Draw, capability) -> list[str]:
    """Return the PTX of each fill kernel of a draw on a GPU."""
    return [
        fill_ptx(fill.kernel, fill_signature(fill, draw.dtype), capability)
        for fill in fills_of(draw, gpu=True)
    ]


@CAPABILITIES
@pytest.mark.parametrize(("kernel", "signature"), SIGNATURES)
def test_kernel_compiles(kernel, signature, capability):
    ptx = compile_ptx(kernel, tuple(numba_type(name) for name in signature), capability)
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    assert ".entry" in ptx
    assert_ieee(ptx)


DRAW_CASES = list(filter(is_compiled_for_gpus, draw_cases()))


@pytest.mark.parametrize("case", DRAW_CASES, ids=str)
def test_draw_compiles(case):
    draws = draws_of(case)
    assert draws
    for draw in draws:
        for ptx in draw_ptx(draw, COMPUTE_CAPABILITIES[0]):
            assert ".entry" in ptx
            # What torch computes on a GPU has approximations; where is another test's matter.
            if case.layout != "torch":
                assert_ieee(ptx)


TABLE = RunTable(np.arange(3), np.arange(4), 3, 1)
X, BITS, MASK = (np.zeros(8, dtype) for dtype in ("float32", "uint16", "uint8"))
DRAWS = {
    "uniform": Draw("uniform", "float32", 8, (0.0, 1.0)),
    "normal64": Draw("normal", "float64", 8, (0.0, 1.0)),
    "log_normal": Draw("log_normal", "bfloat16", 8, (0.0, 1.0)),
    "gamma": Draw("gamma", "float32", 8, (2.5, 1.0)),
    "integers": Draw("integers", "int32", 8, (0, 100)),
    "geometric8": Draw("geometric", "int8", 8, (0.125,)),
    "part": Draw("normal", "float32", 8, (0.0, 1.0), region=Region(3, (2, 4), (9, 2))),
    "table": Draw("normal", "float32", 8, (0.0, 1.0), region=TABLE),
    "table of gammas": Draw("gamma", "float32", 8, (2.5, 1.0), region=TABLE),
    "dropout": Draw("dropout", "float32", 8, (0.5, X, MASK)),
    "dropout16": Draw("dropout", "bfloat16", 8, (0.5, BITS, MASK)),
    "part of dropout": Draw(
        "dropout", "float32", 8, (0.5, X, MASK), region=Region(3, (2, 4), (9, 1))
    ),
}


@CAPABILITIES
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_typical_draws_compile_for_each_capability(draw, capability):
    for ptx in draw_ptx(draw, capability):
        assert f".target sm_{capability[0]}{capability[1]}" in ptx
        assert_ieee(ptx)
        if draw.distribution == "integers":
            assert not any(name.endswith((".f32", ".f64")) for name, _ in instructions(ptx))


@pytest.mark.parametrize(
    ("distribution", "dtype", "written", "again"),
    [
        # Per block: a multiply-add for each of four uniforms.
        ("uniform", "float32", 4, 4),
        # Two uniforms, and one for each conversion of 64 bits.
        ("uniform", "float64", 4, 4),
        # Two pairs: log 9 + 3, sine 5, cosine 4, scaling 2.
        ("normal", "float32", 2 * (12 + 9 + 2), 4),
        # One pair: log 20 + 3, sine 8, cosine 7, two conversions, scaling 2.
        ("normal", "float64", 23 + 15 + 2 + 2, 2),
    ],
)
def test_draw_has_the_multiply_adds_that_were_written(distribution, dtype, written, again):
    (ptx,) = draw_ptx(Draw(distribution, dtype, 8, (0.0, 1.0)), (8, 0))
    names = Counter(name for name, _ in instructions(ptx))
    fused = sum(count for name, count in names.items() if name.startswith("fma."))
    # What stores elements stands in two branches, for whole blocks and for the last one; a
    # compiler may merge them.
    assert fused in {written, written + again}
