"""Of very many referrers, those of the largest allocations are named, with correct paths."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from nbrt.observe.leaks.finder import live_arrays

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(autouse=True)
def cache(fresh: ModuleType) -> None:
    fresh.CACHE = {}


def make(count: int) -> Any:
    return nbrt.zeros(count, "float32", device="cpu:0")


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


def test_of_very_many_the_largest_are_named(fresh: ModuleType) -> None:
    """Small objects come first in memory, and each has several holders."""
    small = [Box(make(1)) for _ in range(300)]
    fresh.CACHE["again"] = {number: (box, [box.content]) for number, box in enumerate(small)}
    models = [Box(make(100_000 + number)) for number in range(5)]
    fresh.CACHE["models"] = {f"model {number}": model for number, model in enumerate(models)}
    mine = {model.content.ctypes.data for model in models}
    del models
    found = [each for each in live_arrays("cpu:0") if each.address in mine]
    assert [each.nbytes for each in found] == [400_016, 400_012, 400_008, 400_004, 400_000]
    for number, each in zip((4, 3, 2, 1, 0), found, strict=True):
        assert each.holders == (f"CACHE['models']['model {number}'].content, a global of fresh",)
    assert len(small) == 300


def test_the_many_holders_of_one_do_not_hide_those_of_another(fresh: ModuleType) -> None:
    fresh.CACHE["many"] = [Box(shared) for shared in [make(100_000)] for _ in range(300)]
    fresh.CACHE["other"] = [Box(make(99_999))]
    many, other = (fresh.CACHE[key][0].content.ctypes.data for key in ("many", "other"))
    found = {each.address: each.holders or () for each in live_arrays("cpu:0")}
    assert any(name.startswith("CACHE['many'][") for name in found[many])
    assert found[other] == ("CACHE['other'][0].content, a global of fresh",)


@pytest.mark.parametrize("count", [10, 49, 50, 2000])
def test_places_in_large_containers(fresh: ModuleType, count: int) -> None:
    arrays = [make(1) for _ in range(count)]
    fresh.CACHE["named"] = {f"key {number}": array for number, array in enumerate(arrays)}
    fresh.CACHE["queue"] = deque(arrays)
    places = {array.ctypes.data: number for number, array in enumerate(arrays)}
    names = {
        places[each.address]: each.holders
        for each in live_arrays("cpu:0")
        if each.address in places
    }
    assert len(names) == count
    for number, found in names.items():
        assert any(name.startswith(f"arrays[{number}], a local") for name in found or ())
