"""Draws into given arrays of any memory layout, against Philox in plain Python."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

LOW = 0xFFFFFFFF


def philox_block(block: int, seed: int) -> list[int]:
    """Return the four words of a block: Philox4x32-10 of Salmon et al., SC'11."""
    c0, c1, c2, c3 = block & LOW, block >> 32, 0, 0
    k0, k1 = seed & LOW, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & LOW, p0 >> 32 ^ c3 ^ k1, p0 & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return [c0, c1, c2, c3]


def words(seed: int, offset: int, n: int) -> np.ndarray[Any, Any]:
    """Return n words from an offset, a multiple of 4."""
    first = offset // 4
    blocks = [philox_block(first + i, seed) for i in range(-(-n // 4))]
    return np.array(blocks, np.uint32).reshape(-1)[:n]


def uniforms(seed: int, offset: int, n: int) -> np.ndarray[Any, Any]:
    """Return the float32 uniforms of n words."""
    return ((words(seed, offset, n) >> 8) * 2.0**-24).astype(np.float32)


def used(n: int) -> int:
    """Return the words that a draw of n float32 elements takes."""
    return -(-n // 4) * 4


def misaligned(n: int) -> np.ndarray[Any, Any]:
    array = np.frombuffer(bytearray(4 * n + 1), np.uint8)[1:].view(np.float32)
    assert not array.flags.aligned
    return array


class Tagged(np.ndarray[Any, Any]):
    """A subclass without changes."""


MAKERS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "plain": lambda: np.zeros(24, np.float32),
    "step 2": lambda: np.zeros(48, np.float32)[::2],
    "reversed": lambda: np.zeros(24, np.float32)[::-1],
    "reversed step 3": lambda: np.zeros(72, np.float32)[::-3],
    "rows": lambda: np.zeros((4, 6), np.float32),
    "columns": lambda: np.zeros((4, 13), np.float32)[:, 1::2],
    "Fortran order": lambda: np.zeros((4, 6), np.float32, order="F"),
    "rows and columns reversed": lambda: np.zeros((4, 6), np.float32)[::-1, ::-1],
    "three axes": lambda: np.zeros((3, 2, 4), np.float32).transpose(2, 0, 1),
    "misaligned": lambda: misaligned(24),
    "misaligned rows": lambda: misaligned(24).reshape(4, 6),
    "subclass": lambda: np.zeros(24, np.float32).view(Tagged),
    "one element": lambda: np.zeros(1, np.float32),
    "no axes": lambda: np.zeros((), np.float32),
    "axes of 1": lambda: np.zeros((1, 24, 1), np.float32),
    "nothing": lambda: np.zeros(0, np.float32),
    "no rows": lambda: np.zeros((0, 6), np.float32),
    "no columns": lambda: np.zeros((4, 0), np.float32)[::2],
}


@pytest.mark.parametrize("name", MAKERS)
def test_values_and_words_do_not_depend_on_the_memory_layout(name: str) -> None:
    generator, offset = nbrt.Generator(77, device="cpu:0"), 0
    for _ in range(3):
        for out in (MAKERS[name](), np.zeros(24, np.float32)):
            assert generator.random(out.shape, np.float32, out) is out
            assert np.array_equal(out.reshape(-1), uniforms(77, offset, out.size))
            offset += used(out.size)
    assert generator.state == nbrt.PhiloxState(77, offset)


@pytest.mark.parametrize("name", ["step 2", "reversed step 3", "columns"])
def test_elements_between_those_of_a_view_stay(name: str) -> None:
    generator = nbrt.Generator(78, device="cpu:0")
    for _ in range(3):
        view = MAKERS[name]()
        owner = view.base
        assert isinstance(owner, np.ndarray)
        owner[...] = 2
        generator.random(out=view, dtype="float32")
        assert (owner == 2).sum() == owner.size - view.size


@pytest.mark.parametrize("size", [16, (16,), [16], np.int64(16), None])
def test_spellings_of_a_size_repeat_the_draw(size: Any) -> None:
    generator, out = nbrt.Generator(79, device="cpu:0"), np.zeros(16, np.float32)
    for number in range(3):
        assert np.array_equal(
            generator.random(size, np.float32, out), uniforms(79, 16 * number, 16)
        )


@pytest.mark.parametrize(
    ("size", "error"),
    [(16.0, ArgumentTypeError), (True, ArgumentTypeError), ((4, 4), ArgumentError)],
    ids=["float", "bool", "other shape"],
)
def test_a_size_of_another_type_is_refused_after_draws_too(size: Any, error: type) -> None:
    generator, out = nbrt.Generator(80, device="cpu:0"), np.zeros(16, np.float32)
    one = np.zeros(1, np.float32)
    for _ in range(2):
        generator.random(16, np.float32, out)
        generator.random(1, np.float32, one)
    state = generator.state
    with pytest.raises(error):
        generator.random(size, np.float32, one if size is True else out)
    assert generator.state == state


def test_an_array_that_becomes_read_only_is_refused() -> None:
    generator, out = nbrt.Generator(81, device="cpu:0"), np.zeros(16, np.float32)
    for _ in range(2):
        generator.random(16, np.float32, out)
    before, state = out.copy(), generator.state
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        generator.random(16, np.float32, out)
    assert generator.state == state
    assert np.array_equal(out, before)


def test_elements_that_share_memory_hold_one_of_their_values() -> None:
    generator = nbrt.Generator(82, device="cpu:0")
    memory = np.zeros(6, np.float32)
    windows = as_strided(memory, (4, 3), (4, 4))
    generator.random(out=windows, dtype="float32")
    drawn = uniforms(82, 0, 12).reshape(4, 3)
    for place, value in enumerate(memory):
        assert value in [drawn[row, place - row] for row in range(4) if 0 <= place - row < 3]


def test_dtypes_of_one_size_do_not_take_each_others_draws() -> None:
    generator, offset = nbrt.Generator(83, device="cpu:0"), 0
    memory = np.zeros(16, np.uint32)
    for _ in range(3):
        generator.random(16, np.float32, memory.view(np.float32))
        assert np.array_equal(memory.view(np.float32), uniforms(83, offset, 16))
        generator.random_bits(16, np.uint32, memory)
        assert np.array_equal(memory, words(83, offset + 16, 16))
        flags = memory.view(np.bool_)[:16]
        generator.bernoulli(0.25, 16, np.bool_, flags)
        assert np.array_equal(flags, uniforms(83, offset + 32, 16) < 0.25)
        offset += 48


def test_parameters_that_are_equal_or_not_take_their_own_draws() -> None:
    generator, out = nbrt.Generator(84, device="cpu:0"), np.zeros(16, np.float32)
    bounds: list[tuple[Any, Any]] = [(0, 1), (0.0, 1.0), (0.0, 2.0), (-0.0, 1), ([0.0] * 16, 2)]
    for number, (low, high) in enumerate(bounds + bounds):
        generator.uniform(low, high, 16, np.float32, out)
        expected = uniforms(84, 16 * number, 16) * np.float32(high)
        assert np.array_equal(out, expected)


def test_draws_of_threads_tile_the_stream() -> None:
    """Draws of several sizes, each into an array of an earlier kind: the values of some order."""
    generator, sizes = nbrt.Generator(85, device="cpu:0"), (4, 16, 64, 20)
    barrier = threading.Barrier(4)

    def draw(size: int) -> list[np.ndarray[Any, Any]]:
        barrier.wait()
        return [generator.random(size, np.float32, np.zeros(size, np.float32)) for _ in range(100)]

    with ThreadPoolExecutor(4) as pool:
        drawn = [piece for pieces in pool.map(draw, sizes) for piece in pieces]
    whole = uniforms(85, 0, 100 * sum(sizes))
    place = {tuple(whole[i : i + 4]): i for i in range(0, whole.size, 4)}
    taken = np.zeros(whole.size, np.int64)
    for piece in drawn:
        start = place[tuple(piece[:4])]
        assert np.array_equal(piece, whole[start : start + piece.size])
        taken[start : start + piece.size] += 1
    assert (taken == 1).all()


def test_a_capture_records_the_draw_of_an_earlier_kind() -> None:
    generator, out = nbrt.Generator(86, device="cpu:0"), nbrt.zeros(16, device="cpu:0")
    for _ in range(2):
        generator.random(16, np.float32, out)
    with nbrt.device("cpu:0"), nbrt.graph() as graph:
        generator.random(16, np.float32, out)
    assert np.array_equal(out, uniforms(86, 16, 16))
    for number in (2, 3):
        graph.replay()
        assert np.array_equal(out, uniforms(86, 16 * number, 16))
    generator.random(16, np.float32, out)
    assert np.array_equal(out, uniforms(86, 64, 16))
