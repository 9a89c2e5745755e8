"""Generators in torch's layout: published values, states, memory order, permutations."""

from __future__ import annotations

import numpy as np
import pytest

import nbrt
from helpers.torch_reference import permutation_reference
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.random import PhiloxState

A100 = 108 * 2048


@pytest.fixture
def drawer(device: nbrt.Device) -> nbrt.Device:
    """A device that can draw."""
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return device


def torch(device: nbrt.Device, seed: int, gpu: str = "A100") -> nbrt.Generator:
    return nbrt.Generator(seed, device, "torch", gpu=gpu)


def test_values_that_others_published(drawer: nbrt.Device) -> None:
    # torch.rand(5) with seed 0: pytorch#47347; torch.rand(3, 4) with seed 42: course notes.
    first = nbrt.to_host(torch(drawer, 0).random(5, "float32"))
    assert np.round(first, 4).tolist() == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401, 0.9459])
    table = nbrt.to_host(torch(drawer, 42).random((3, 4), "float32"))
    published = [
        0.6130,
        0.0101,
        0.3984,
        0.0403,
        0.1563,
        0.4825,
        0.7362,
        0.4060,
        0.5189,
        0.2867,
        0.2416,
        0.9228,
    ]
    assert np.round(table.reshape(-1), 4).tolist() == pytest.approx(published)
    # torch.randn with seed 0, first row of 8.
    normals = nbrt.to_host(torch(drawer, 0).standard_normal((4, 8), "float32"))[0]
    expected = [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284]
    assert np.abs(normals - expected).max() < 6e-5


def test_offsets_are_torchs(drawer: nbrt.Device) -> None:
    generator = torch(drawer, 1)
    generator.random(4 * A100, "float32")
    assert generator.state == PhiloxState(1, 4)
    generator.random(4 * A100 + 1, "float32")
    assert generator.state == PhiloxState(1, 12)
    generator.bernoulli(np.full(10, 0.5, np.float32))
    assert generator.state == PhiloxState(1, 24)


def test_elements_are_counted_as_they_lie_in_memory(drawer: nbrt.Device) -> None:
    """A transposed tensor gets other values than a contiguous one (csarofeen/pytorch#1888)."""
    dense = nbrt.to_host(torch(drawer, 1).random((5, 7), "float32"))
    turned = nbrt.empty((7, 5), "float32", device=drawer).T
    torch(drawer, 1).random(out=turned, dtype="float32")
    assert np.array_equal(nbrt.to_host(turned).T.reshape(-1), dense.reshape(-1))


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 70_000])
def test_permutations(drawer: nbrt.Device, n: int) -> None:
    generator = torch(drawer, 3).advance(8)
    order = nbrt.to_host(generator.permutation(n))
    assert np.array_equal(order, permutation_reference(n, 3, 8, A100))
    assert np.array_equal(np.sort(order), np.arange(n))


def test_integers_of_the_range_of_the_dtype(drawer: nbrt.Device) -> None:
    """``random_()`` without bounds takes 32 bits for each int32: word & 0x7fffffff."""
    x = nbrt.zeros(5, "int32", device=drawer)
    nbrt.random.random_(x, generator=torch(drawer, 0))
    words = np.array([0x6627E8D5])  # Random123: the first word of counter 0 and key 0
    assert nbrt.to_host(x)[0] == words[0] & 0x7FFFFFFF


def test_two_gpus_differ_beyond_the_smaller_grid(drawer: nbrt.Device) -> None:
    # pytorch#194676: a T4 agrees with others up to 40960 elements.
    small = nbrt.to_host(torch(drawer, 0, "T4").random(40961, "float32"))
    large = nbrt.to_host(torch(drawer, 0).random(40961, "float32"))
    assert np.array_equal(small[:40960], large[:40960])
    assert small[40960] != large[40960]


def test_what_torch_does_not_draw(drawer: nbrt.Device) -> None:
    generator = torch(drawer, 0)
    with pytest.raises(NotSupportedError, match="layout='element'"):
        generator.gamma(2.0, size=3)
    assert generator.state == PhiloxState(0, 0)


def test_layouts_that_do_not_exist(drawer: nbrt.Device) -> None:
    with pytest.raises(ArgumentError, match="layout of element, torch"):
        nbrt.Generator(0, drawer, "jax")
    with pytest.raises(ArgumentTypeError, match="without name, follows_memory"):
        nbrt.Generator(0, drawer, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="gpu with layout='torch' only"):
        nbrt.Generator(0, drawer, gpu="A100")
    with pytest.raises(ArgumentError, match="H100"):
        nbrt.Generator(0, drawer, "torch", gpu="H1000 SXM")
    if drawer.kind == "cpu":
        with pytest.raises(ArgumentError, match="pass gpu="):
            nbrt.Generator(0, drawer, "torch")


def test_stateless_draws_have_the_prefix_property(drawer: nbrt.Device) -> None:
    generator = nbrt.Generator(9, drawer, "torch_stateless")
    whole = nbrt.to_host(generator.clone().random(1003, "float32"))
    assert np.array_equal(nbrt.to_host(generator.random(500, "float32")), whole[:500])
    assert generator.state.offset == 500
