"""Footprints of arrays, against sets of addresses."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nbrt.observe.races.footprint import arrays_in, footprint_of


def addresses(array: np.ndarray[Any, Any]) -> set[int]:
    """Return the address of every byte of an array."""
    start = array.ctypes.data
    return {
        start + sum(i * step for i, step in zip(index, array.strides, strict=True)) + byte
        for index in itertools.product(*map(range, array.shape))
        for byte in range(array.itemsize)
    }


def some_view(base: np.ndarray[Any, Any], choose: random.Random) -> np.ndarray[Any, Any]:
    cuts = []
    for size in base.shape:
        first, last = sorted(choose.sample(range(size + 1), 2))
        cuts.append(slice(first, last, choose.choice([1, 2, 3])))
    view = base[tuple(cuts)]
    if choose.random() < 0.5:
        view = view[::-1]
    return view.T if choose.random() < 0.5 else view


@pytest.mark.parametrize("seed", range(40))
def test_bounds_and_overlaps_are_those_of_the_bytes(seed: int) -> None:
    choose = random.Random(seed)
    base = np.zeros((7, 9), choose.choice(["u1", "<i2", "<f8"]))
    one, two = some_view(base, choose), some_view(base, choose)
    first, second = footprint_of(one), footprint_of(two)
    assert first is not None
    assert second is not None
    assert (first.begin, first.end - 1) == (min(addresses(one)), max(addresses(one)))
    assert first.overlaps(second) == bool(addresses(one) & addresses(two))


def test_interleaved_views_do_not_overlap() -> None:
    base = np.zeros((8, 8))
    left, right = footprint_of(base[:, :4]), footprint_of(base[:, 4:])
    assert left is not None
    assert right is not None
    assert left.end > right.begin
    assert not left.overlaps(right)
    assert left.overlaps(left)


class Foreign:
    """An array of another library."""

    def __init__(self, **face: Any) -> None:
        self.face = face

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self.face:
            raise RuntimeError("expected no gradients")
        return self.face


class Pointed(Foreign):
    """An array that has its address at hand, as CuPy's."""

    data = SimpleNamespace(ptr=4096)
    shape, strides, itemsize = (3, 4), (64, -8), 8


@pytest.mark.parametrize("strides", [None, (32, 8), (64, -8)])
def test_a_cuda_array_is_known_by_its_protocol(strides: tuple[int, ...] | None) -> None:
    foreign = Foreign(shape=(3, 4), typestr="<f8", data=(4096, False), strides=strides)
    footprint = footprint_of(foreign)
    assert footprint is not None
    steps = strides or (32, 8)
    reached = [4096 + i * steps[0] + j * steps[1] for i in range(3) for j in range(4)]
    assert (footprint.begin, footprint.end) == (min(reached), max(reached) + 8)
    assert footprint.strides == steps


def test_an_address_at_hand_is_taken() -> None:
    assert footprint_of(Pointed()) == (4072, 4232, 4096, (3, 4), (64, -8), 8)


def test_an_array_that_refuses_to_say_where_it_is() -> None:
    assert footprint_of(Foreign()) is None


@pytest.mark.parametrize("value", [3, None, "x", np.float32(1.0), np.zeros(0), [1.0]])
def test_what_has_no_bytes_of_memory_has_no_footprint(value: object) -> None:
    assert footprint_of(value) is None


def test_arrays_are_found_inside_of_tuples_and_lists() -> None:
    x, y, z = np.zeros(1), np.zeros(1), Foreign()
    found = list(arrays_in((x, 1, (2.0, y), [None, [z]], "s", np.int64(3))))
    assert [id(one) for one in found] == [id(x), id(y), id(z)]
