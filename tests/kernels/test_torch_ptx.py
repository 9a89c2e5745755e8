"""The torch kernels compile for CUDA, with approximations exactly where torch has them."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core import types

from helpers.kernels import COMPUTE_CAPABILITIES, compile_ptx
from helpers.torch_draws import TINY
from kernels.test_ptx import assert_ieee, instructions
from nbrt_kernels.random.torch import torch_launches
from nbrt_kernels.random.torch.fills import shuffle_runs
from nbrt_kernels.random.torch.requests import stateless_launches

STATE = types.UniTuple(types.uint64, 2)


def ptx_of(launch, dtype, capability, state=STATE):
    element = types.Array(getattr(types, dtype), 1, "C")
    head = (element, state, types.uint64)
    arguments = tuple(_type(argument) for argument in launch.arguments)
    return compile_ptx(launch.kernel, (*head, *arguments), capability)


def _type(argument):
    if isinstance(argument, np.ndarray):
        return types.Array(_type(argument[0]), 1, "C")
    return getattr(types, argument.dtype.name)


def names(ptx):
    return {name for name, _ in instructions(ptx)}


@pytest.mark.parametrize("capability", COMPUTE_CAPABILITIES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
def test_normals_have_the_fast_sine_and_no_fast_logarithm(capability):
    (launch,) = torch_launches("normal", "float32", 5000, (0.0, 1.0), TINY, hardware=True)
    found = names(ptx_of(launch, "float32", capability))
    assert {"sin.approx.f32", "cos.approx.f32"} <= found or {
        "sin.approx.ftz.f32",
        "cos.approx.ftz.f32",
    } <= found
    # cuRAND takes the accurate logarithm and the rounded square root.
    assert not any(name.startswith("lg2") for name in found)
    assert "sqrt.rn.f32" in found


@pytest.mark.parametrize(
    ("distribution", "parameters", "instruction"),
    [
        ("exponential", (1.0,), "lg2.approx"),
        ("log_normal", (0.0, 1.0), "ex2.approx"),
        ("cauchy", (0.0, 1.0), "sin.approx"),
    ],
)
def test_fast_functions(distribution, parameters, instruction):
    (launch,) = torch_launches(distribution, "float32", 5000, parameters, TINY, hardware=True)
    found = names(ptx_of(launch, "float32", (9, 0)))
    assert any(name.startswith(instruction) for name in found)


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters"),
    [
        ("uniform", "float32", (0.0, 1.0)),
        ("normal", "float32", (0.0, 1.0)),
        ("cauchy", "float64", (0.0, 1.0)),
        ("integers", "int32", (0, 100)),
    ],
)
def test_portable_kernels_are_ieee(distribution, dtype, parameters):
    (launch,) = torch_launches(distribution, dtype, 5000, parameters, TINY)
    ptx = ptx_of(launch, dtype, (8, 0))
    assert_ieee(ptx)
    if distribution == "integers":
        assert not any(name.startswith(("rem.", "div.")) for name in names(ptx))


def test_chunks_regions_and_states_in_memory():
    x, mask = np.zeros(8, np.float32), np.zeros(8, np.uint8)
    state = types.Array(types.uint64, 1, "C")
    (launch,) = torch_launches("dropout", "float32", 8, (0.5, x, mask), TINY)
    assert ".entry" in ptx_of(launch, "float32", (8, 0), state)
    (launch,) = torch_launches("uniform", "float32", 90, (0.0, 1.0), TINY, 9, (3, 9, 1, 0, 0))
    assert ".entry" in ptx_of(launch, "float32", (8, 0))
    keys = types.Array(types.int32, 1, "C")
    signature = (types.Array(types.int64, 1, "C"), STATE, types.uint64, keys)
    assert ".entry" in compile_ptx(shuffle_runs, signature, (8, 0))


def test_stateless_uniforms_multiply_and_add_apart():
    (launch,) = stateless_launches("uniform", "float32", 8, (-0.5, 0.7))
    found = names(ptx_of(launch, "float32", (8, 0)))
    assert {"mul.rn.f32", "add.rn.f32"} <= found
    assert "fma.rn.f32" not in found
