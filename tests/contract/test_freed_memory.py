"""The race checker on freed memory: use after free, reuse without order, poison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt
from helpers.memory_races import (
    ORDERS,
    Address,
    N,
    Order,
    Streams,
    address_of,
    kinds,
    let_pass,
    nothing,
    reused,
    synchronize_stream,
    wait_stream,
)
from nbrt.errors import MemoryRaceError, MemoryRaceWarning
from nbrt.observe.races.checker import check_races

# -- freed memory ----------------------------------------------------------------------------------


@pytest.fixture
def caching(device: nbrt.Device) -> nbrt.Device:
    """A device whose pool keeps freed blocks."""
    if device.kind == "sample":
        pytest.skip("the sample backend keeps no freed memory")
    return device


@pytest.mark.parametrize("use", ["copy from", "copy to"])
def test_use_after_free(caching: nbrt.Device, use: str) -> None:
    out = nbrt.zeros(N, device=caching)
    with nbrt.device(caching), check_races(action="collect") as checker:
        x = nbrt.full(N, 1.0, "float32")
        alias, address = Address(x), address_of(x)
        nbrt.copy(alias.array(), np.float32(2.0))
        nbrt.synchronize()  # queued work may hold it
        del x
        assert checker.reports == []
        if use == "copy from":
            nbrt.copy(out, alias.array())
        else:
            nbrt.copy(alias.array()[3:], np.float32(1.0))
        report = checker.reports[0]
    assert report.kind == "use_after_free"
    assert report.address == address + (12 if use == "copy to" else 0)
    assert "nbrt.full(N" in report.allocated.stack
    assert "del x" in report.freed.stack
    assert report.freed.stream == repr(nbrt.default_stream(caching))


def test_a_refused_use_after_free_writes_nothing(caching: nbrt.Device) -> None:
    with check_races() as checker:
        x = nbrt.full(N, 1.0, "float32", device=caching)
        alias = Address(x)
        nbrt.synchronize(caching)
        del x
        with pytest.raises(MemoryRaceError, match=r"(?s)^use after free on .*to mend it: keep"):
            nbrt.copy(alias.array(), np.float32(1.0), stream=nbrt.default_stream(caching))
    assert kinds(checker) == ["use_after_free"]  # and no poison was changed


def test_a_free_in_the_middle_of_the_checkers_own_work(caching: nbrt.Device) -> None:
    class Dropping:
        """An argument that drops an array when it is looked at."""

        def __init__(self, held: list[nbrt.typing.Array]) -> None:
            self.held = held

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            self.held.clear()
            return {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3}

    stream = nbrt.default_stream(caching)
    with check_races() as checker:
        held = [nbrt.empty(N, stream=stream)]
        alias = Address(held[0])
        stream.call(id, Dropping(held))
        assert held == []
        with pytest.raises(MemoryRaceError):
            nbrt.copy(alias.array(), np.float32(1.0), stream=stream)
    assert kinds(checker) == ["use_after_free"]


def test_a_view_keeps_memory_in_use(caching: nbrt.Device) -> None:
    with check_races() as checker:
        x = nbrt.full((10, 10), 1.0, "float32", device=caching)
        view = x[3:, ::2]
        del x
        nbrt.copy(view, np.float32(2.0), stream=nbrt.default_stream(caching))
        assert np.all(nbrt.to_host(view) == 2.0)
    assert checker.reports == []


@pytest.mark.parametrize("order", [nothing, *ORDERS])
def test_a_new_array_on_another_stream(side_streams: Streams, order: Order) -> None:
    """The block still has work of its old stream before it."""
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.full(N, 1.0, "float32", stream=first)
        address = address_of(x)
        let_pass(first)
        del x
        y = reused(first, address)
        order(first, second)
        nbrt.copy(y, np.float32(2.0), stream=second)
    if order is not nothing:
        assert checker.reports == []
        return
    (report,) = checker.reports
    assert report.kind == "reuse_race"
    assert "nbrt.copy(y" in report.touched.stack
    assert "nbrt.full(N" in report.other.stack
    assert "del x" in report.freed.stack
    assert "wait for the stream of the allocation" in report.advice


@pytest.mark.parametrize("order", [nothing, wait_stream, synchronize_stream, "record_stream"])
def test_an_old_array_on_another_stream(side_streams: Streams, order: Order | str) -> None:
    """Another library's wrapper of the memory is used on a stream that was not recorded."""
    first, second = side_streams
    out = np.zeros(N, np.float32)
    with check_races(action="collect") as checker:
        x = nbrt.full(N, 1.0, "float32", stream=first)
        address = address_of(x)
        second.wait_stream(first)
        nbrt.copy(out, Address(x).array(), stream=second)
        if order == "record_stream":
            nbrt.memory.record_stream(x, second)
        elif callable(order):
            order(second, first)
        let_pass(second)
        let_pass(first)
        del x
        let_pass(second)  # it now has what record_stream waits for
        nbrt.copy(reused(first, address), np.float32(2.0), stream=first)
    assert kinds(checker) == (["reuse_race"] if order is nothing else [])
    if order is nothing:
        assert "record_stream" in checker.reports[0].advice


def test_arguments_of_commands_are_recorded_by_themselves(side_streams: Streams) -> None:
    first, second = side_streams
    out = np.zeros(N, np.float32)
    with check_races() as checker:
        x = nbrt.full(N, 1.0, "float32", stream=first)
        address = address_of(x)
        second.wait_stream(first)
        nbrt.copy(out, x, stream=second)
        let_pass(second)
        let_pass(first)
        del x
        let_pass(second)  # it now has what the recording waits for
        nbrt.copy(reused(first, address), np.float32(2.0), stream=first)
    assert checker.reports == []
    assert np.all(out == 1.0)


def test_a_block_for_another_stream_is_the_pools_business(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races() as checker:
        x = nbrt.full(N, 1.0, "float32", stream=first)
        let_pass(first)
        del x
        nbrt.full(N, 2.0, "float32", stream=second)
    assert checker.reports == []


def test_the_33rd_stream_is_the_first(side_stream: nbrt.Stream) -> None:
    streams = [nbrt.Stream(side_stream.device) for _ in range(33)]
    with check_races() as checker:
        x = nbrt.zeros(N, stream=streams[0])
        nbrt.copy(x, np.float32(1.0), stream=streams[32])
    assert checker.reports == []


# -- poison ----------------------------------------------------------------------------------------


@pytest.fixture
def host(caching: nbrt.Device) -> nbrt.Device:
    """A device whose memory the host reads."""
    if not nbrt.get_interface_for_device(caching).capabilities.host_addressable:
        pytest.skip(f"the memory of {caching} is judged by the recorded order alone")
    return caching


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_poison_is_not_a_number(host: nbrt.Device, dtype: str) -> None:
    with check_races():
        x = nbrt.zeros(N, dtype, device=host)
        alias = Address(x).array()
        del x
        assert np.all(np.isnan(alias))
        assert np.all(np.isnan(nbrt.empty(N, dtype, device=host)))


@pytest.mark.parametrize(("poison", "is_whole"), [(True, False), ("all", True)])
def test_of_large_blocks_the_ends_are_poisoned(
    host: nbrt.Device, poison: Any, is_whole: bool
) -> None:
    with check_races(poison=poison):
        x = nbrt.zeros(1 << 20, "float32", device=host)
        alias = Address(x).array()
        del x
        assert np.all(np.isnan(alias[:1000]))
        assert np.all(np.isnan(alias[-1000:]))
        assert np.isnan(alias[1 << 19]) == is_whole


@pytest.mark.parametrize("found", ["at the end", "when handed out"])
def test_write_after_free(host: nbrt.Device, found: str) -> None:
    with pytest.raises(MemoryRaceError) as caught, check_races() as checker:  # noqa: PT012
        x = nbrt.zeros(N, device=host)
        alias, address = Address(x).array(), address_of(x)
        del x
        nbrt.zeros(3 * N, device=host)
        alias[7] = 1.0
        if found == "when handed out":
            reused(nbrt.default_stream(host), address)
            assert kinds(checker) == ["write_after_free"]
    (report,) = caught.value.reports
    assert (report.kind, report.address) == ("write_after_free", address + 28)
    assert "byte 28 of" in report.message
    assert report.message.endswith("later commands of its stream: fill")
    assert "nbrt.zeros(N" in report.allocated.stack
    assert "del x" in report.freed.stack
    assert report.touched is None


def test_no_poison(host: nbrt.Device) -> None:
    with check_races(poison=False) as checker:
        x = nbrt.zeros(N, device=host)
        alias = Address(x).array()
        del x
        assert np.all(alias == 0.0)
        alias[7] = 1.0
    assert checker.reports == []


def test_a_failure_of_the_block_comes_first(host: nbrt.Device) -> None:
    with pytest.raises(KeyError) as caught, check_races():  # noqa: PT012
        x = nbrt.zeros(N, device=host)
        alias = Address(x).array()
        del x
        alias[0] = 1.0
        raise KeyError
    assert [note.split(":")[0] for note in caught.value.__notes__] == ["write after free on cpu"]


@pytest.mark.parametrize("kind", ["caching", "expandable", "plain"])
def test_segments_that_come_and_go(host: nbrt.Device, kind: str) -> None:
    """Sizes that grow: new segments lie where others were given back."""
    pool = nbrt.MemoryPool(host, kind)
    with nbrt.device(host), nbrt.use_pool(pool), check_races() as checker:
        for length in range(256, 1536, 32):
            arrays = [nbrt.empty((8, length, width)) for width in (64, 64, length, length)]
            del arrays
    assert checker.reports == []


def test_memory_given_back_is_forgotten(host: nbrt.Device) -> None:
    nbrt.empty_cache(host)
    with check_races() as checker:
        arrays = [nbrt.zeros(1 << 20, "uint8", device=host) for _ in range(8)]
        arrays += [nbrt.zeros(4 << 20, "uint8", device=host) for _ in range(4)]
        spans = [(address_of(array), array.nbytes) for array in arrays]
        arrays.clear()
        nbrt.empty_cache(host)
        # The system hands the addresses out again, to whom it likes.
        others = [np.zeros(nbytes, np.uint8) for _, nbytes in spans for _ in range(2)]
        out = nbrt.zeros(4 << 20, "uint8", device=host)
        for other in others:
            nbrt.copy(out[: other.size], other, stream=nbrt.default_stream(host))
    assert checker.reports == []


def test_changed_poison_is_warned_of(host: nbrt.Device) -> None:
    with (  # noqa: PT031
        pytest.warns(MemoryRaceWarning, match="write after free"),
        check_races(action="warn"),
    ):
        x = nbrt.zeros(N, device=host)
        alias = Address(x).array()
        del x
        alias[0] = 1.0
