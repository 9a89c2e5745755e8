"""Layouts as values: increments, constants, GPUs by name."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from nbrt._internal.device import Device
from nbrt._internal.gpus import GPUS
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.random.layouts import (
    ElementLayout,
    TorchLayout,
    TorchStatelessLayout,
    resolve_layout,
)
from nbrt.random.layouts.torch import TORCH_VERSIONS, gpu_size, permutation_keys
from nbrt_kernels.random.torch.requests import pieces

T4 = TorchLayout("T4")
UNIT = (0.0, 1.0)


# -- GPUs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "threads"),
    [
        # As published in reports on torch: the sizes up to which two GPUs give the same values.
        ("A100", 221184), ("H100 SXM", 270336), ("H100 PCIe", 233472), ("V100", 163840),
        ("T4", 40960), ("L4", 89088), ("A10G", 122880), ("RTX A4000", 73728),
    ],
)  # fmt: skip
def test_the_threads_of_known_grids(gpu, threads):
    assert TorchLayout(gpu).grid == threads


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX 3080 Ti"),
        ("GeForce RTX 3080 12GB", "RTX 3080 12GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("rtx-4070-ti-super", "RTX 4070 Ti SUPER"),
        ("H100", "H100 SXM"),
    ],
)
def test_names_as_cuda_gives_them(name, known):
    assert gpu_size(name) == (GPUS[known].multiprocessors, GPUS[known].limits.threads)


@pytest.mark.parametrize(
    ("name", "near"),
    [("H10", "H100 PCIe"), ("RTX 4090 Laptop GPU", "RTX 4090"), ("RTX 3085", "RTX 3080")],
)
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(ArgumentError, match=near):
        gpu_size(name)


@pytest.mark.parametrize(
    ("gpu", "error"),
    [((0, 2048), ArgumentError), ((4, 128), ArgumentError), ((4,), ArgumentTypeError),
     ((4.0, 2048), ArgumentTypeError), (7, ArgumentTypeError), ("", ArgumentError)],
)  # fmt: skip
def test_what_is_no_gpu(gpu, error):
    with pytest.raises(error, match="expected"):
        TorchLayout(gpu)


def test_threads_are_whole_blocks():
    assert TorchLayout((3, 1000)).grid == 3 * 768


# -- increments ------------------------------------------------------------------------------------


def reserved(n, grid, lanes):
    """As calc_execution_policy of torch has it."""
    blocks = min((n + 255) // 256, grid // 256)
    return ((n - 1) // (256 * blocks * lanes) + 1) * 4


@pytest.mark.parametrize("n", [1, 256, 257, 40960, 40961, 163840, 163841, 10**7])
def test_increments(n):
    def increment(distribution, dtype, *parameters):
        return T4.increment(distribution, dtype, n, parameters)

    for distribution in ("uniform", "normal", "log_normal", "cauchy"):
        for dtype in ("float16", "bfloat16", "float32"):
            assert increment(distribution, dtype, 0.0, 1.0) == reserved(n, 40960, 4)
        assert increment(distribution, "float64", 0.0, 1.0) == reserved(n, 40960, 2)
    assert increment("exponential", "float64", 1.0) == reserved(n, 40960, 2)
    assert increment("geometric", "int64", 0.5) == reserved(n, 40960, 4)
    assert increment("bernoulli", "bool", 0.5) == reserved(n, 40960, 4)
    assert increment("bernoulli", "float64", 0.5) == reserved(n, 40960, 2)
    assert increment("bernoulli", "bool", np.full(n, 0.5)) == 12
    assert increment("dropout", "float64", 0.5, None, None) == reserved(n, 40960, 4)
    assert increment("integers", "int64", 0, 2**28 - 1) == reserved(n, 40960, 4)
    assert increment("integers", "int32", 0, 2**28) == reserved(n, 40960, 2)
    assert increment("random", "int32") == reserved(n, 40960, 4)
    assert increment("random", "int64") == reserved(n, 40960, 2)
    assert increment("shuffle_runs", "int64", None) == -(-n // 4) * 4


@pytest.mark.parametrize(
    ("dtype", "n"), [("float32", 2**29 + 1), ("float64", 2**31 + 7), ("uint8", 2**33)]
)
def test_a_draw_beyond_32_bit_offsets_reserves_for_the_whole_and_for_its_parts(dtype, n):
    lanes, itemsize = (2, 8) if dtype == "float64" else (4, np.dtype(dtype).itemsize)
    parts = pieces(n, itemsize, 40960, lanes)
    assert len(parts) > 1
    begin, end, ahead = parts[-1]
    assert end == n
    distribution = "bernoulli" if dtype == "uint8" else "uniform"
    expected = 4 * ahead + reserved(end - begin, 40960, lanes)
    assert T4.increment(distribution, dtype, n, (0.5, 1.0)) == expected


def test_the_kernels_get_the_grid_and_the_rules():
    assert T4.constants("uniform", "float32", 5) == (40960, 2**28)
    assert ElementLayout().constants("uniform", "float32", 5) == ()
    assert TorchStatelessLayout().constants("uniform", "float32", 5) == ()


@pytest.mark.parametrize(
    ("n", "bits"), [(1, 3), (5, 7), (100, 16), (65536, 35), (10**5, 36), (2**30, 63)]
)
def test_keys_of_permutations(n, bits):
    # As randperm_out_cuda counts them: q = 0.9 is the chance that no two keys are equal.
    assert bits == np.ceil(np.log2(n - (6.0 * n * n + 1) / (12 * np.log(0.9))))
    dtype, low, high, mask = permutation_keys(n)
    assert (dtype, mask) == ("int32" if bits <= 32 else "int64", 2**bits - 1)
    assert (low, high) == (np.iinfo(dtype).min, np.iinfo(dtype).max)


def test_permutations_whose_keys_count_whole():
    sizes = [n for n in range(20000, 32000, 100) if permutation_keys(n)[3] is None]
    bits = [np.log2(n - (6.0 * n * n + 1) / (12 * np.log(0.9))) for n in sizes]
    assert sizes
    assert all(31 < b <= 32 for b in bits)


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout", [ElementLayout(), T4, TorchLayout((4, 1536)), TorchStatelessLayout()]
)
def test_layouts_are_values(layout):
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert hash(again) == hash(layout)
    assert eval(repr(layout)) == layout
    with pytest.raises((AttributeError, TypeError)):
        layout.name = "other"


def test_specification_as_text():
    assert str(T4) == "torch-2.13 on T4"
    assert str(TorchStatelessLayout()) == "torch_stateless"
    assert TorchLayout("T4", "2.14") != T4


def test_an_unknown_version():
    assert {"2.13", "2.14", "2.15"} <= set(TORCH_VERSIONS)
    with pytest.raises(ArgumentError, match=r"2\.13, 2\.14, 2\.15"):
        TorchLayout("T4", "1.0")


def test_draws_that_a_layout_lacks():
    with pytest.raises(NotSupportedError, match="layout='element'"):
        T4.increment("gamma", "float32", 5, (1.0,))
    with pytest.raises(NotSupportedError, match="layout='element'"):
        TorchStatelessLayout().increment("normal", "float32", 5, UNIT)


@pytest.mark.parametrize(
    ("dtype", "n", "words"), [("float32", 5, 8), ("float64", 5, 12), ("float16", 8, 8)]
)
def test_stateless_increments(dtype, n, words):
    assert TorchStatelessLayout().increment("uniform", dtype, n, UNIT) == words


def test_resolving():
    cpu = Device("cpu", 0)
    assert resolve_layout("element", None, cpu) == ElementLayout()
    assert resolve_layout("torch", "T4", cpu) == T4
    assert resolve_layout("torch_stateless", None, cpu) == TorchStatelessLayout()
    assert resolve_layout(T4, None, cpu) is T4
    with pytest.raises(ArgumentError, match="gpu='A100'"):
        resolve_layout("torch", None, cpu)
    with pytest.raises(ArgumentError, match="torch_stateless"):
        resolve_layout("numpy", None, cpu)
    with pytest.raises(ArgumentError, match="layout='torch'"):
        resolve_layout("element", "T4", cpu)
