"""The stateless layout against torch 2.15 itself, and custom layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.torch_draws import run, stateless_draw
from helpers.torch_reference import integers_reference, stateless_words_reference
from nbrt_kernels._dialect import device_function
from nbrt_kernels.random.launches import Fill
from nbrt_kernels.random.philox import philox4x32_reference
from nbrt_kernels.random.torch import make_located
from nbrt_kernels.random.torch.fills import make_store
from nbrt_kernels.random.torch.requests import stateless_launches
from nbrt_kernels.random.torch.transforms import (
    finish_bits,
    finish_normal,
    swapped_two,
    uniforms_32,
)

# Made with torch.func._random of torch 2.15.0; the entry "source" says how.
GOLDEN = dict(np.load(Path(__file__).parents[1] / "data" / "torch_stateless.npz"))
KEYS = [(int(seed), int(block)) for seed, block in GOLDEN["keys"]]
DRAWS = [name for name in GOLDEN if "/" in name]


def draw(name, n, key, **part):
    distribution, dtype, low, high = name.split("/")
    number = float if distribution == "uniform" else int
    return stateless_draw(distribution, dtype, n, number(low), number(high), key=key, **part)


@pytest.mark.parametrize("name", DRAWS)
def test_equals_torch(name):
    expected = GOLDEN[name]
    for key, row in zip(KEYS, expected, strict=True):
        drawn = draw(name, row.size, key)
        assert drawn.dtype == row.dtype
        assert np.array_equal(drawn, row)
        # The prefix property, of which torch's documentation speaks.
        assert np.array_equal(draw(name, 6, key), row[:6])


@pytest.mark.parametrize("name", ["uniform/float32/0.0/1.0", f"integers/int64/0/{2**63}"])
def test_a_region_is_the_slice_of_the_whole(name):
    region = (3, 2, 4, 7, 0)
    for key, row in zip(KEYS, GOLDEN[name], strict=True):
        part = draw(name, row.size, key, count=8, region=region)
        assert np.array_equal(part, [row[3 + 7 * r + j] for r in range(4) for j in range(2)])


@pytest.mark.parametrize(
    ("name", "per_block"), [("integers/int32/0/2147483648", 4), (f"integers/int64/0/{2**63}", 2)]
)
def test_long_draws(name, per_block):
    _, dtype, low, high = name.split("/")
    words = stateless_words_reference(5000, 7, 2**64 - 3, per_block)
    expected = integers_reference(words, int(high) - int(low), int(low), dtype)
    assert np.array_equal(draw(name, 5000, (7, 2**64 - 3)), expected)


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters", "error", "message"),
    [
        ("normal", "float32", (0.0, 1.0), TypeError, "exact"),
        ("integers", "int32", (0, 2**28 + 1), ValueError, "64 bits"),
        ("integers", "uint8", (0, 257), ValueError, "uint8"),
        ("uniform", "float32", (2.0, 1.0), ValueError, "low <= high"),
    ],
)
def test_refusals(distribution, dtype, parameters, error, message):
    with pytest.raises(error, match=message):
        stateless_launches(distribution, dtype, 10, parameters)


# -- a custom layout: one subsequence for each element -------------------------------------------


@device_function
def toy_locate(index, words, k0, k1, k2):
    return k0, index + k1, index % (np.uint64(4) // words)


def toy_words(n, seed, block, first):
    counter = np.zeros((n, 4), np.uint32)
    counter[:, 0] = block
    counter[:, 2] = first + np.arange(n)
    return philox4x32_reference(counter, [seed, 0])


def toy_draw(standard, store, lanes, dtype, n, *parameters):
    kernel = make_located(toy_locate, standard, store, lanes)
    numbers = (9, 100, 0, 0, n, 0, n, 1, 0, 0)
    arguments = (*(np.uint64(number) for number in numbers), *parameters)
    launch = Fill(kernel, n, arguments, skip_blocks=2)
    return run([launch], np.zeros(n, dtype), (np.uint64(5), np.uint64(4)))


def test_a_layout_of_words():
    words = toy_words(50, 5, 12, 100)[np.arange(50), np.arange(50) % 4]
    scale, shift = np.float32(1), np.float32(3)
    store = make_store(finish_normal)
    drawn = toy_draw(uniforms_32, store, 4, np.float32, 50, shift, scale, np.float32(0))
    u = words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    assert np.array_equal(drawn, u + shift)


def test_a_layout_of_64_bit_values():
    pairs = toy_words(50, 5, 12, 100).reshape(50, 2, 2)[np.arange(50), np.arange(50) % 2]
    zero = np.uint64(0)
    drawn = toy_draw(swapped_two, make_store(finish_bits), 2, np.uint64, 50, zero, zero, zero)
    assert np.array_equal(drawn, pairs[:, 1] | pairs[:, 0].astype(np.uint64) << np.uint64(32))
