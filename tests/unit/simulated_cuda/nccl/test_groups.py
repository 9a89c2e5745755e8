"""Groups, sends and receives of the simulated NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status
from helpers.nccl_ranks import TYPES, on_threads

if TYPE_CHECKING:
    from helpers.nccl_ranks import Rank

BYTE, DOUBLE = TYPES["uint8"], TYPES["float64"]
LARGE = 700_000
"""Bytes that do not fit into a mailbox."""


def test_one_thread_with_two_ranks(nccl: Any, ranks: list[Rank]) -> None:
    comms = nccl.NcclCommunicator.initAll([1, 0])
    assert [(comm.rank_id(), comm.device_id(), comm.size()) for comm in comms] == [
        (0, 1, 2), (1, 0, 2),
    ]  # fmt: skip
    owners = [ranks[1], ranks[0]]
    addresses = [owner.put(np.full(3, 1.0 + owner.number)) for owner in owners]
    nccl.groupStart()
    for comm, owner, address in zip(comms, owners, addresses, strict=True):
        comm.allReduce(address, address, 3, DOUBLE, 0, owner.stream)
    nccl.groupEnd()
    for owner, address in zip(owners, addresses, strict=True):
        assert owner.get(address, 3, np.float64).tolist() == [3.0] * 3
    for comm in comms:
        comm.destroy()


def test_ranks_that_send_and_receive_in_a_group_do_not_wait_for_each_other(
    nccl: Any, ranks: list[Rank]
) -> None:
    """Everybody sends to everybody, itself included, two messages in order."""
    given = [[np.arange(LARGE) % 251 + 10 * rank.number + k for k in range(2)] for rank in ranks]

    def work(rank: Rank) -> None:
        sources = [rank.put(each.astype(np.uint8)) for each in given[rank.number]]
        out = [[rank.allocate(LARGE) for _ in range(2)] for _ in ranks]
        nccl.groupStart()
        for peer in range(2):
            for message in range(2):
                rank.comm.send(sources[message], LARGE, BYTE, peer, rank.stream)
        for peer in range(2):
            for message in range(2):
                rank.comm.recv(out[peer][message], LARGE, BYTE, peer, rank.stream)
        nccl.groupEnd()
        for peer in range(2):
            for message in range(2):
                found = rank.get(out[peer][message], LARGE, np.uint8)
                np.testing.assert_array_equal(found, given[peer][message].astype(np.uint8))

    on_threads(ranks, work)


def test_a_send_and_a_receive_alone(ranks: list[Rank]) -> None:
    def work(rank: Rank) -> Any:
        address = rank.put(np.arange(LARGE // 8) * (1 - rank.number))
        if rank.number == 0:
            rank.comm.send(address, LARGE // 8, TYPES["int64"], 1, rank.stream)
        else:
            rank.comm.recv(address, LARGE // 8, TYPES["int64"], 0, rank.stream)
        return rank.get(address, LARGE // 8, np.int64)

    for found in on_threads(ranks, work):
        np.testing.assert_array_equal(found, np.arange(LARGE // 8))


def test_collectives_and_sends_in_one_group(nccl: Any, ranks: list[Rank]) -> None:
    """The order of calls within a group may differ from rank to rank."""

    def work(rank: Rank) -> Any:
        address, message = rank.put(np.full(2, 1.0)), rank.put(np.full(2, 5.0 + rank.number))
        nccl.groupStart()
        if rank.number == 0:
            rank.comm.send(message, 2, DOUBLE, 1, rank.stream)
        nccl.groupStart()
        rank.comm.allReduce(address, address, 2, DOUBLE, 0, rank.stream)
        nccl.groupEnd()
        if rank.number == 1:
            rank.comm.recv(message, 2, DOUBLE, 0, rank.stream)
        nccl.groupEnd()
        return [rank.get(each, 2, np.float64).tolist() for each in (address, message)]

    assert on_threads(ranks, work) == [[[2.0, 2.0], [5.0, 5.0]]] * 2


def test_a_group_waits_for_all_its_streams_and_they_for_it(nccl: Any, ranks: list[Rank]) -> None:
    def work(rank: Rank) -> None:
        address, other = rank.put(np.ones(1)), rank.new_stream()
        latch = Latch().hold(driver.CUstream(other))
        nccl.groupStart()
        rank.comm.allReduce(address, address, 1, DOUBLE, 0, rank.stream)
        rank.comm.allReduce(address, address, 1, DOUBLE, 0, other)
        nccl.groupEnd()
        assert status(driver.cuStreamQuery(driver.CUstream(rank.stream))) == "NOT_READY"
        latch.open()
        call(driver.cuStreamSynchronize(driver.CUstream(other)))
        assert status(driver.cuStreamQuery(driver.CUstream(rank.stream))) in (
            "SUCCESS",
            "NOT_READY",
        )
        assert rank.get(address, 1, np.float64) == [4.0]
        call(driver.cuStreamDestroy(driver.CUstream(other)))

    on_threads(ranks, work)


def test_splits(nccl: Any, ranks: list[Rank]) -> None:
    def work(rank: Rank) -> Any:
        swapped = rank.comm.commSplit(3, -rank.number)
        alone = rank.comm.commSplit(rank.number, 0)
        absent = rank.comm.commSplit(0 if rank.number else -1, 0)
        nested = swapped.commSplit(0, 0)
        address = rank.put(np.full(1, 1.0 + rank.number))
        nested.broadcast(address, address, 1, DOUBLE, 0, rank.stream)
        found = rank.get(address, 1, np.float64)[0]
        places = [(comm.rank_id(), comm.size()) for comm in (swapped, alone, nested)]
        for comm in (swapped, alone, nested):
            comm.destroy()
        return places, found, absent is None

    whole = [(1, 2), (0, 1), (1, 2)], 2.0, True
    assert on_threads(ranks, work) == [whole, ([(0, 2), (0, 1), (0, 2)], 2.0, False)]
