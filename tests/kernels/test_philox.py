"""Philox4x32-10 against published vectors and other engines' published output."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from helpers.kernels import launch
from nbrt_kernels._dialect import cuda
from nbrt_kernels.random.philox import philox4x32, philox4x32_reference, words_reference

VECTORS = Path(__file__).parents[1] / "data" / "philox4x32_kat.csv"


def read_vectors() -> list[tuple[int, list[int], list[int], list[int]]]:
    lines = (line for line in VECTORS.read_text().splitlines() if not line.startswith("#"))
    rows = list(csv.reader(lines))[1:]
    numbers = [(int(row[0]), [int(word, 16) for word in row[1:]]) for row in rows]
    return [(rounds, words[:4], words[4:6], words[6:]) for rounds, words in numbers]


def philox_kernel(out, counters, keys):
    i = cuda.grid(1)
    if i < counters.shape[0]:
        counter = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]
        w0, w1, w2, w3 = philox4x32(counter, (keys[i, 0], keys[i, 1]))
        out[i, 0] = w0
        out[i, 1] = w1
        out[i, 2] = w2
        out[i, 3] = w3


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), read_vectors())
def test_reference_gives_the_random123_vectors(rounds, counter, key, expected):
    assert philox4x32_reference(counter, key, rounds).tolist() == expected


def test_kernel_gives_the_random123_vectors():
    full = [vector for vector in read_vectors() if vector[0] == 10]
    counters, keys = (np.array([v[i] for v in full], dtype=np.uint32) for i in (1, 2))
    out = np.zeros_like(counters)
    launch(philox_kernel, (3,), out, counters, keys)
    assert out.tolist() == [v[3] for v in full]


def test_kernel_equals_reference_on_random_input():
    rng = np.random.default_rng(1)
    counters = rng.integers(0, 2**32, (1000, 4), dtype=np.uint32)
    keys = rng.integers(0, 2**32, (1000, 2), dtype=np.uint32)
    out = np.zeros_like(counters)
    launch(philox_kernel, (1000,), out, counters, keys)
    assert np.array_equal(out, philox4x32_reference(counters, keys))


@pytest.mark.parametrize(
    ("seed", "offset", "expected"),
    [(0, 4, [4013802324, 2979262830]), (10, 1, [2007330488, 2354548925])],
)
def test_reference_gives_the_values_of_torchs_cpu_engine_test(seed, offset, expected):
    # pytorch, aten/src/ATen/test/cpu_generator_test.cpp: the first two outputs of
    # Philox4_32(seed, subsequence=0, offset), where the offset counts blocks.
    block = philox4x32_reference([offset, 0, 0, 0], [seed, 0])
    assert block[:2].tolist() == expected


def test_reference_gives_values_published_for_torch_cuda():
    # pytorch issue 47347: seed 0, torch.rand(5, device="cuda"); thread i draws word 0 of block 0
    # of subsequence i, and u = float(word) * 2**-32 + 2**-33.
    counters = np.zeros((5, 4), dtype=np.uint32)
    counters[:, 2] = np.arange(5)
    words = philox4x32_reference(counters, [0, 0])[:, 0]
    values = words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    assert np.round(values, 4).tolist() == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401, 0.9459])


def test_block_numbers_cross_32_bits():
    blocks = np.array([2**32 - 1, 2**32, 2**64 - 1], dtype=np.uint64)
    counters = [[2**32 - 1, 0, 3, 0], [0, 1, 3, 0], [2**32 - 1, 2**32 - 1, 3, 0]]
    key = [0x89ABCDEF, 0x01234567]
    words = words_reference(blocks, 0x0123456789ABCDEF, attempt=3)
    assert np.array_equal(words, philox4x32_reference(counters, key))
