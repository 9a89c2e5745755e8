"""Collectives of the simulated NCCL, through CuPy's bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status
from helpers.nccl_ranks import TYPES, dtype_of, on_threads

if TYPE_CHECKING:
    from helpers.nccl_ranks import Rank

SUM, PROD, MAX, MIN, AVG = range(5)
COMBINE = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum, AVG: np.add}
CHUNK = 1 << 20
"""Bytes that a rank passes on at once."""


def values(number: int, count: int, dtype: Any) -> Any:
    rng = np.random.default_rng(number)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
    return rng.normal(0, 3, count).astype(dtype)


@pytest.mark.parametrize("name", TYPES)
def test_reductions_of_every_type(ranks: list[Rank], name: str) -> None:
    dtype = dtype_of(name)
    given = [values(rank.number, 100, dtype) for rank in ranks]

    def work(rank: Rank) -> None:
        source = rank.put(given[rank.number])
        out = rank.allocate(100 * dtype.itemsize)
        for operation, combine in COMBINE.items():
            rank.comm.allReduce(source, out, 100, TYPES[name], operation, rank.stream)
            with np.errstate(all="ignore"):
                expected = combine(*given).astype(dtype)
                if operation == AVG and dtype.kind in "iu":
                    expected = np.trunc(expected.astype(object) / 2).astype(dtype)
                elif operation == AVG:
                    expected = (expected / dtype.type(2)).astype(dtype)
            found = rank.get(out, 100, dtype)
            if name.startswith("float8"):  # ml_dtypes overflows to NaN and infinity, CUDA saturates
                finite = np.isfinite(expected.astype(float))
                found, expected = found[finite], expected[finite]
            np.testing.assert_array_equal(found.astype(float), expected.astype(float))

    on_threads(ranks, work)


def test_special_numbers_of_half_precision(ranks: list[Rank]) -> None:
    left = np.array([65504, 65504, np.inf, np.nan, 2**-24, 1, -0.0, 2048], np.float16)
    right = np.array([16, 15.99, -np.inf, 1, 2**-24, 2**-11, -0.0, 1], np.float16)
    given = left, right

    def work(rank: Rank) -> Any:
        source = rank.put(given[rank.number])
        rank.comm.allReduce(source, source, left.size, TYPES["float16"], SUM, rank.stream)
        return rank.get(source, left.size, np.float16)

    with np.errstate(all="ignore"):
        expected = left + right
    for found in on_threads(ranks, work):
        np.testing.assert_array_equal(found, expected)
        assert np.signbit(found[6])


@pytest.mark.parametrize("count", [0, 1, CHUNK // 8, CHUNK // 8 + 3, 400_000])
def test_sizes_and_places(ranks: list[Rank], count: int) -> None:
    """Every collective, out of place and in place, below and above the size of a chunk."""
    given = [np.arange(2 * count) + 10 * rank.number for rank in ranks]
    total = given[0] + given[1]
    kind = TYPES["int64"]

    def work(rank: Rank) -> None:
        own = slice(rank.number * count, (rank.number + 1) * count)
        size, stream, comm = 16 * count, rank.stream, rank.comm
        source, out = rank.put(given[rank.number]), rank.allocate(size + 1)
        half = 8 * count * rank.number

        def check(address: int, expected: Any) -> None:
            np.testing.assert_array_equal(rank.get(address, expected.size, np.int64), expected)

        comm.allReduce(source, out, 2 * count, kind, SUM, stream)
        check(out, total)
        comm.reduceScatter(source, out, count, kind, SUM, stream)
        check(out, total[own])
        comm.allGather(source, out, count, kind, stream)
        check(out, np.concatenate([each[:count] for each in given]))
        comm.broadcast(source, out, count, kind, 1, stream)
        check(out, given[1][:count])
        comm.reduce(source, out if rank.number else 0, count, kind, SUM, 1, stream)
        check(out, total[:count] if rank.number else given[1][:count])

        comm.allGather(source + half, source, count, kind, stream)
        check(source, np.concatenate([given[0][:count], given[1][count:]]))
        comm.reduceScatter(source, source + half, count, kind, SUM, stream)
        gathered = np.concatenate([given[0][:count], given[1][count:]])
        check(source + half, 2 * gathered[own])
        comm.bcast(source, count, kind, 0, stream)
        check(source, 2 * gathered[:count])

    on_threads(ranks, work)


def test_one_rank(nccl: Any, ranks: list[Rank]) -> None:
    rank = ranks[0]
    rank.enter()
    comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    source, out = rank.put(np.arange(5.0)), rank.allocate(40)
    comm.allReduce(source, out, 5, TYPES["float64"], AVG, rank.stream)
    np.testing.assert_array_equal(rank.get(out, 5, np.float64), np.arange(5.0))
    assert (comm.size(), comm.rank_id(), comm.device_id()) == (1, 0, 0)
    comm.destroy()


def test_collectives_are_ordered_on_their_streams(ranks: list[Rank]) -> None:
    """A rank waits on its stream, not in the call, and takes the memory as it is by then."""
    first, second = ranks
    addresses = [rank.put(np.arange(4.0)) for rank in ranks]
    first.enter()
    latch = Latch().hold(driver.CUstream(first.stream))
    call(driver.cuMemsetD8Async(addresses[0], 0, 32, driver.CUstream(first.stream)))
    for rank, address in zip(ranks, addresses, strict=True):
        rank.enter()
        rank.comm.allReduce(address, address, 4, TYPES["float64"], SUM, rank.stream)
    second.enter()
    assert status(driver.cuStreamQuery(driver.CUstream(second.stream))) == "NOT_READY"
    latch.open()
    for rank, address in zip(ranks, addresses, strict=True):
        np.testing.assert_array_equal(rank.get(address, 4, np.float64), np.arange(4.0))


def test_operations_of_a_communicator_keep_their_order_on_several_streams(
    ranks: list[Rank],
) -> None:
    """A rank may issue operations on different streams; the other ranks see the same order."""

    def work(rank: Rank) -> Any:
        out, other = rank.put(np.ones(1)), rank.new_stream()
        latch = Latch().hold(driver.CUstream(rank.stream)) if rank.number == 0 else None
        for stream, operation in [(rank.stream, SUM), (other, PROD), (rank.stream, SUM)] * 3:
            rank.comm.allReduce(out, out, 1, TYPES["float64"], operation, stream)
        if latch is not None:
            latch.open()
        found = rank.get(out, 1, np.float64)[0]
        rank.comm.check_async_error()
        call(driver.cuStreamDestroy(driver.CUstream(other)))
        return found

    assert on_threads(ranks, work) == [(((1 + 1) ** 2 * 2 * 2) ** 2 * 2 * 2) ** 2 * 2] * 2


def test_a_captured_collective_runs_with_each_launch_of_the_graph(ranks: list[Rank]) -> None:
    def work(rank: Rank) -> Any:
        address, stream = rank.put(np.ones(2)), driver.CUstream(rank.stream)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(driver.cuStreamBeginCapture(stream, mode))
        rank.comm.allReduce(address, address, 2, TYPES["float64"], SUM, rank.stream)
        graph = call(driver.cuStreamEndCapture(stream))
        runnable = call(driver.cuGraphInstantiate(graph, 0))
        for _ in range(3):
            call(driver.cuGraphLaunch(runnable, stream))
        found = rank.get(address, 2, np.float64)
        call(driver.cuGraphExecDestroy(runnable))
        call(driver.cuGraphDestroy(graph))
        return found.tolist()

    assert on_threads(ranks, work) == [[8.0, 8.0]] * 2
