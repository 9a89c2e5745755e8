"""Draws that repeat an earlier one of the generator, from a later place in its stream."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.backends.draw import Draw
from nbrt.runtime.commands import CommandHook, install_hook

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command

SIZES = (1, 16, 1001)


def expected_uniforms(seed: int, calls: int, n: int) -> np.ndarray[Any, Any]:
    """Return the draws of `calls` generators that each skip the words of the earlier draws."""
    state = nbrt.Generator(seed, device="cpu:0").state
    rows = []
    for _ in range(calls):
        generator = nbrt.Generator(0, device="cpu:0")
        generator.state = state
        rows.append(generator.random(n, "float32"))
        state = state.advance(n)
    return np.array(rows)


@pytest.mark.parametrize("n", SIZES)
def test_each_draw_into_one_array_continues_the_stream(n: int) -> None:
    generator, out = nbrt.Generator(2**64 - 5, device="cpu:0"), nbrt.empty(n, device="cpu:0")
    drawn = [generator.random(n, np.float32, out).copy() for _ in range(4)]
    assert np.array_equal(drawn, expected_uniforms(2**64 - 5, 4, n))


def test_seeds_may_change_between_draws() -> None:
    generator, out = nbrt.Generator(1, device="cpu:0"), nbrt.empty(16, device="cpu:0")
    for seed in (1, 2, 2, 0, 1):
        generator.manual_seed(seed)
        for row in expected_uniforms(seed, 2, 16):
            assert np.array_equal(generator.random(16, np.float32, out), row)


def test_a_hook_that_is_installed_later_sees_the_draws() -> None:
    class Seen(CommandHook):
        def __init__(self) -> None:
            self.draws: list[Draw] = []

        def before(self, stream: Any, command: Command) -> None:
            draw = command.args[1]
            assert isinstance(draw, Draw)
            self.draws.append(draw)

    generator, out = nbrt.Generator(3, device="cpu:0"), nbrt.empty(16, device="cpu:0")
    for _ in range(2):
        generator.random(16, np.float32, out)
    seen = Seen()
    with install_hook(seen, before=("draw",), after=()):
        generator.random(16, np.float32, out)
    assert [(draw.seed, draw.offset) for draw in seen.draws] == [(3, 32)]
    assert np.array_equal(out, expected_uniforms(3, 3, 16)[2])


def test_other_streams_repeat_the_draw_in_their_order() -> None:
    generator, stream = nbrt.Generator(4, device="cpu:0"), nbrt.Stream("cpu:0")
    outs = [nbrt.empty(1001, device="cpu:0") for _ in range(4)]
    generator.random(1001, np.float32, outs[0])
    with nbrt.stream(stream):
        for out in outs[1:]:
            generator.random(1001, np.float32, out)
    stream.synchronize()
    assert np.array_equal(outs, expected_uniforms(4, 4, 1001))


def test_threads_that_share_a_generator_take_different_words() -> None:
    generator = nbrt.Generator(5, device="cpu:0")
    outs = [nbrt.empty(16, device="cpu:0") for _ in range(200)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda out: generator.random(16, np.float32, out), outs))
    found = sorted(map(tuple, outs))
    assert found == sorted(map(tuple, expected_uniforms(5, 200, 16)))


def test_generators_that_change_places_on_one_plan_keep_their_seeds() -> None:
    first, second = (nbrt.Generator(seed, device="cpu:0") for seed in (6, 7))
    clone, out = first.clone(), nbrt.empty(16, device="cpu:0")
    rows = {seed: expected_uniforms(seed, 3, 16) for seed in (6, 7)}
    for step in range(3):
        for seed, generator in ((6, first), (7, second), (6, clone)):
            assert np.array_equal(generator.random(16, np.float32, out), rows[seed][step])


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.empty(16, np.float64), nbrt.errors.ArgumentTypeError),
        (np.empty(17, np.float32), nbrt.errors.ArgumentError),
        (np.empty((4, 4), np.float32), nbrt.errors.ArgumentError),
        (np.broadcast_to(np.float32(0), (16,)), nbrt.errors.ArgumentError),
        (nbrt.empty(16, device="cpu:1"), nbrt.errors.DeviceMismatchError),
    ],
    ids=["dtype", "size", "shape", "read-only", "device"],
)
def test_an_array_that_does_not_fit_is_refused_after_draws_too(out: Any, error: type) -> None:
    generator, fits = nbrt.Generator(8, device="cpu:0"), nbrt.empty(16, device="cpu:0")
    generator.random(16, np.float32, fits)
    state = generator.state
    with pytest.raises(error):
        generator.random(16, np.float32, out)
    assert generator.state == state


def test_gaps_and_other_orders_are_filled_by_the_repeated_draw() -> None:
    generator = nbrt.Generator(9, device="cpu:0")
    rows = expected_uniforms(9, 3, 16).reshape(3, 4, 4)
    buffer = np.zeros((4, 8), np.float32)
    plain, fortran = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32, "F")
    for out, row in zip((plain, buffer[:, ::2], fortran), rows, strict=True):
        assert np.array_equal(generator.random((4, 4), np.float32, out), row)
    assert not buffer[:, 1::2].any()


def test_a_plan_keeps_no_array_alive() -> None:
    generator, out = nbrt.Generator(10, device="cpu:0"), np.empty(16, np.float32)
    for _ in range(2):
        generator.random(16, np.float32, out)
    alive = weakref.ref(out)
    del out
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("width", [1, 7, 33, 64])
def test_columns_are_repeated_from_their_place(width: int) -> None:
    whole = expected_uniforms(11, 4, 20 * 101).reshape(4, 20, 101)
    shard = nbrt.Generator(11, device="cpu:0").shard((20, 101), (slice(None), slice(5, 5 + width)))
    raw = np.empty(4 * 20 * width + 1, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(20, width)
    plain = np.zeros((20, width), np.float32)
    outs = (plain, np.zeros_like(plain), misaligned, np.zeros((20, width), np.float32, "F"))
    for out, row in zip(outs, whole, strict=True):
        assert shard.random(None, np.float32, out) is out
        assert np.array_equal(out, row[:, 5 : 5 + width])


@pytest.mark.parametrize("dtype", ["bool", "int64", "float64"])
def test_arrays_of_two_dimensions_are_repeated(dtype: str) -> None:
    high = 2 if dtype == "bool" else 1 << 40

    def drawn(generator: nbrt.Generator, size: int | None, out: Any = None) -> Any:
        if dtype == "float64":
            return generator.standard_normal(size, dtype, out)
        return generator.integers(0, high, size, dtype, out=out)

    expected = drawn(nbrt.Generator(12, device="cpu:0"), 30).reshape(5, 6)
    generator, out = nbrt.Generator(12, device="cpu:0"), np.zeros((5, 6), dtype)
    for _ in range(3):
        generator.set_offset(0)
        assert np.array_equal(drawn(generator, None, out), expected)
        out[...] = 0


def test_parameters_may_be_arrays_after_a_draw_with_numbers() -> None:
    generator, out = nbrt.Generator(13, device="cpu:0"), np.empty(16, np.float64)
    first = generator.normal(1.0, 2.0, 16, out=out).copy()
    generator.set_offset(0)
    again = generator.normal(np.full(16, 1.0), np.full(16, 2.0), 16, out=out)
    assert np.array_equal(first, again)
