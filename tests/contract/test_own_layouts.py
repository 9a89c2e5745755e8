"""A layout that is written outside nbrt: one subsequence for each element."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import ArgumentTypeError
from nbrt_kernels.random import philox4x32_reference


@cuda.jit(device=True)
def own_subsequence(index, words, first, k1, k2):
    """Element i takes the first words of subsequence first + i."""
    return np.uint64(0), first + index, np.uint64(0)


@dataclass(frozen=True)
class Subsequences:
    first: int = 0
    name: ClassVar[str] = "subsequences"
    follows_memory: ClassVar[bool] = False
    index_to_counter: ClassVar[Any] = own_subsequence

    def increment(self, distribution: str, dtype: str, n: int, parameters: tuple[Any, ...]) -> int:
        return 4

    def constants(self, distribution: str, dtype: str, n: int) -> tuple[int, ...]:
        return (self.first,)


@pytest.fixture
def generator(device: nbrt.Device) -> nbrt.Generator:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return nbrt.Generator(7, device, Subsequences(1000))


def test_words_are_where_the_layout_says(generator: nbrt.Generator) -> None:
    counter = np.zeros((50, 4), np.uint32)
    counter[:, 0] = 2
    counter[:, 2] = 1000 + np.arange(50)
    words = philox4x32_reference(counter, np.array([7, 0], np.uint32))
    generator.set_offset(8)
    uniforms = nbrt.to_host(generator.random(50, "float32"))
    assert np.array_equal(uniforms, (words[:, 0] >> 8).astype(np.float32) * np.float32(2**-24))
    assert generator.get_offset() == 12
    generator.set_offset(8)
    wide = words[:, 0].astype(np.uint64) | words[:, 1].astype(np.uint64) << np.uint64(32)
    assert np.array_equal(nbrt.to_host(generator.random(50)), (wide >> np.uint64(11)) * 2.0**-53)


def test_shards_and_parameters_for_each_element(generator: nbrt.Generator) -> None:
    whole = nbrt.to_host(generator.clone().normal(size=(6, 8), dtype="float32"))
    part = generator.shard((6, 8), (slice(1, 5), slice(2, 7, 3))).normal(dtype="float32")
    assert np.array_equal(nbrt.to_host(part), whole[1:5, 2:7:3])
    generator.set_offset(0)
    moved = nbrt.to_host(generator.normal([[0.0], [1.0]], 1.0, dtype="float32", size=(2, 3)))
    assert np.array_equal(moved[0], whole.reshape(-1)[:3])
    assert np.allclose(moved[1] - 1.0, whole.reshape(-1)[3:6], atol=1e-6)


def test_what_needs_further_words_is_refused(generator: nbrt.Generator) -> None:
    for draw in (lambda: generator.gamma(2.0, size=3), lambda: generator.integers(0, 3, 5)):
        with pytest.raises(ArgumentTypeError, match="use layout='element'"):
            draw()
    assert generator.state.offset == 0


def test_values_of_equal_layouts_are_equal() -> None:
    drawn = [nbrt.Generator(7, "cpu:0", Subsequences(first)).random(5) for first in (0, 0, 1)]
    assert [np.array_equal(a, b) for a, b in itertools.pairwise(drawn)] == [True, False]
