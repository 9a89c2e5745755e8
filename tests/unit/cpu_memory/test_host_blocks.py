"""Blocks, handles, and how the owner under an array is found."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest

import nbrt
from nbrt.backends.cpu.memory import CachingPool, block_from_external, owner_of


@pytest.fixture
def array() -> np.ndarray:
    return np.ndarray((4, 5), np.float32, CachingPool().allocate(None, 100).handle("owner"))


def test_the_owner_is_found_under_every_view(array: np.ndarray) -> None:
    class Subclass(np.ndarray):
        pass

    for view in (
        array,
        array[1:],
        array[1:][:, ::2].T,
        array.view(Subclass)[1:],
        array.base[4:],
        array.base.base[4:],
        array.data,
        np.frombuffer(array, np.uint8),
        np.asarray(memoryview(array)),
        np.lib.stride_tricks.as_strided(array, (2, 2), (4, 4)),
        np.broadcast_to(array, (3, 4, 5)),
    ):
        assert owner_of(view) == "owner"


@pytest.mark.parametrize("other", [None, 5, np.zeros(3), b"abc", memoryview(b"abc"), np.float32(1)])
def test_other_memory_has_no_owner(other: object) -> None:
    assert owner_of(other) is None


def test_a_handle_lives_as_long_as_any_view() -> None:
    block = CachingPool().allocate(None, 100)
    handle = block.handle("owner")
    ended = weakref.ref(handle)
    array = np.ndarray((5,), np.float32, handle)
    del handle
    for derive in (
        lambda a: a[2:],
        lambda a: a.base[4:],
        lambda a: memoryview(a),
        lambda a: a.view(type(a.base)),
        lambda a: a[1:],
        lambda a: np.frombuffer(a.base, np.uint8),
        lambda a: a.T,
    ):
        array = derive(np.asarray(array))
        assert ended() is not None
    del array
    assert ended() is None


def test_a_block_that_was_taken_back_has_no_memory() -> None:
    pool = CachingPool()
    block = pool.allocate(None, 100)
    pool.deallocate(None, block)
    with pytest.raises(AttributeError):
        block.handle("owner")


def test_memory_of_another_allocator_is_kept_by_arrays_over_it() -> None:
    class Source:
        memory = ctypes.create_string_buffer(b"\1" * 128)

    source = Source()
    gone = weakref.ref(source)
    block = block_from_external(ctypes.addressof(Source.memory), 128, source)
    array = np.ndarray((16,), np.uint8, block.handle("owner"))
    del source, block
    view = array[4:]
    del array
    assert (owner_of(view), view.sum(), gone() is None) == ("owner", 12, False)
    del view
    gc.collect()
    assert gone() is None


def test_views_of_an_arrays_base_belong_to_its_device() -> None:
    array = nbrt.zeros(16, device="cpu:1")
    view = array.base[4:]
    assert nbrt.device_of(view) == nbrt.Device("cpu:1")
    address, before = array.ctypes.data, nbrt.memory_allocated("cpu:1")
    del array
    assert nbrt.memory_allocated("cpu:1") == before
    del view
    assert nbrt.memory_allocated("cpu:1") < before
    assert nbrt.zeros(16, device="cpu:1").ctypes.data == address


def test_a_view_of_the_class_of_the_base_keeps_the_block() -> None:
    array = nbrt.zeros(16, device="cpu:1")
    view = array.view(type(array.base))
    further = view[4:]
    before = nbrt.memory_allocated("cpu:1")
    del array, view
    assert nbrt.memory_allocated("cpu:1") == before
    del further
    assert nbrt.memory_allocated("cpu:1") < before
