"""Misuse, aborts and deaths: the simulated NCCL gives an error where NCCL may hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call
from helpers.nccl_ranks import TYPES, Rank, on_threads

if TYPE_CHECKING:
    from collections.abc import Callable

DOUBLE = TYPES["float64"]


def mismatched(rank: Rank, kind: str, address: int) -> None:
    number, stream, comm = rank.number, rank.stream, rank.comm
    if kind == "count":
        comm.allReduce(address, address, 2 + number, DOUBLE, 0, stream)
    elif kind == "type":
        comm.allReduce(address, address, 2, DOUBLE - number, 0, stream)
    elif kind == "reduction":
        comm.allReduce(address, address, 2, DOUBLE, number, stream)
    elif kind == "root":
        comm.broadcast(address, address, 2, DOUBLE, number, stream)
    elif kind == "function" and number:
        comm.allGather(address, address, 2, DOUBLE, stream)
    elif kind == "function":
        comm.allReduce(address, address, 2, DOUBLE, 0, stream)
    elif number:
        comm.send(address, 3, DOUBLE, 0, stream)
    else:
        comm.recv(address, 2, DOUBLE, 1, stream)


@pytest.mark.parametrize("kind", ["count", "type", "reduction", "root", "function", "message"])
def test_ranks_that_disagree(ranks: list[Rank], kind: str) -> None:
    def work(rank: Rank) -> str:
        address = rank.put(np.arange(8.0))
        mismatched(rank, kind, address)
        error = rank.error()
        assert rank.get(address, 8, np.float64).tolist() == list(range(8))
        with pytest.raises(rank.nccl.NcclError, match="INVALID_USAGE"):
            rank.comm.allReduce(address, address, 2, DOUBLE, 0, rank.stream)
        return error

    assert on_threads(ranks, work) == ["INVALID_USAGE"] * 2


@pytest.mark.parametrize("how", ["abort", "destroy"])
def test_a_rank_that_leaves_ends_the_wait_of_others(ranks: list[Rank], how: str) -> None:
    first, second = ranks
    address = first.put(np.ones(1))
    first.comm.allReduce(address, address, 1, DOUBLE, 0, first.stream)
    second.enter()
    getattr(second.comm, how)()
    first.enter()
    assert first.error() == "REMOTE_ERROR"


def test_an_abort_ends_the_own_wait(ranks: list[Rank]) -> None:
    first = ranks[0]
    address = first.put(np.ones(1))
    first.comm.allReduce(address, address, 1, DOUBLE, 0, first.stream)
    first.comm.abort()
    first.synchronize()


def test_an_aborted_communicator_is_no_argument(ranks: list[Rank]) -> None:
    first = ranks[0]
    address = first.put(np.ones(1))
    first.comm.abort()
    with pytest.raises(first.nccl.NcclError, match="INVALID_ARGUMENT"):
        first.comm.allReduce(address, address, 1, DOUBLE, 0, first.stream)


def test_a_missing_rank_is_an_error_after_the_time_limit(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBRT_SIM_NCCL_TIMEOUT", "0")
    first = ranks[0]
    first.enter()
    key = first.nccl.get_unique_id()
    with pytest.raises(first.nccl.NcclError):
        first.nccl.NcclCommunicator(2, key, 0)


def test_ranks_that_cannot_connect(nccl: Any, ranks: list[Rank]) -> None:
    def errors(numbers: list[int], sizes: list[int], devices: list[int]) -> list[str]:
        key = nccl.get_unique_id()

        def work(rank: Rank) -> str:
            ranks[devices[rank.number]].enter()
            try:
                comm = nccl.NcclCommunicator(sizes[rank.number], key, numbers[rank.number])
            except nccl.NcclError as error:
                return str(error).partition(":")[0].removeprefix("NCCL_ERROR_")
            comm.destroy()
            return ""

        return on_threads(ranks, work)

    assert errors([0, 1], [2, 2], [1, 1]) == ["INVALID_USAGE"] * 2
    assert errors([0, 1], [2, 3], [0, 1]) == ["INVALID_USAGE"] * 2
    assert errors([0, 0], [2, 2], [0, 1]) == ["INVALID_USAGE"] * 2


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_invalid_numbers_of_ranks(nccl: Any, ranks: list[Rank], size: int, rank: int) -> None:
    ranks[0].enter()
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        nccl.NcclCommunicator(size, nccl.get_unique_id(), rank)


def test_an_identifier_of_something_else(nccl: Any, ranks: list[Rank]) -> None:
    ranks[0].enter()
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        nccl.NcclCommunicator(1, bytes(128), 0)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda rank, near, far: (near, near, 3, DOUBLE, 0),
        lambda rank, near, far: (near, 0, 2, DOUBLE, 0),
        lambda rank, near, far: (far, near, 2, DOUBLE, 0),
        lambda rank, near, far: (np.ones(2).ctypes.data, near, 2, DOUBLE, 0),
        lambda rank, near, far: (near, near, 2, 12, 0),
        lambda rank, near, far: (near, near, 2, DOUBLE, 5),
    ],
    ids=["small", "null", "device", "host", "type", "reduction"],
)
def test_invalid_arguments(ranks: list[Rank], arguments: Callable[..., Any]) -> None:
    first, second = ranks
    far = second.put(np.ones(2))
    near = first.put(np.ones(2))
    with pytest.raises(first.nccl.NcclError, match="INVALID_ARGUMENT"):
        first.comm.allReduce(*arguments(first, near, far), first.stream)
    with pytest.raises(first.nccl.NcclError, match="INVALID_ARGUMENT"):
        first.comm.broadcast(near, near, 2, DOUBLE, 2, first.stream)
    first.comm.check_async_error()


def test_a_failed_call_fails_its_group(nccl: Any, ranks: list[Rank]) -> None:
    first = ranks[0]
    address = first.put(np.ones(2))
    nccl.groupStart()
    first.comm.send(address, 2, DOUBLE, 1, first.stream)
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        first.comm.recv(address, 2, DOUBLE, 7, first.stream)
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        nccl.groupEnd()
    first.synchronize()
    with pytest.raises(nccl.NcclError, match="INVALID_USAGE"):
        nccl.groupEnd()


def test_a_call_does_not_wait_for_its_stream(ranks: list[Rank]) -> None:
    first = ranks[0]
    address = first.put(np.ones(1))
    latch = Latch().hold(driver.CUstream(first.stream))
    first.comm.allReduce(address, address, 1, DOUBLE, 0, first.stream)
    first.comm.abort()
    latch.open()
    call(driver.cuStreamSynchronize(driver.CUstream(first.stream)))


PROCESS = """
import os, sys
import numpy as np
from simulated_cuda import loader
loader.load()
from cupy.cuda import nccl
from helpers.nccl_ranks import Rank
number = int(sys.argv[1])
rank = Rank(nccl, number, number)
rank.comm = nccl.NcclCommunicator(2, bytes.fromhex(sys.argv[2]), number)
address = rank.put(np.full(300_000, 1.0 + number))
rank.comm.allReduce(address, address, 300_000, 8, 0, rank.stream)
assert (rank.get(address, 300_000, np.float64) == 3).all()
if number == 1:
    os._exit(7)
rank.comm.allReduce(address, address, 300_000, 8, 0, rank.stream)
print(rank.error())
"""


def test_ranks_in_processes_of_which_one_dies(nccl: Any) -> None:
    key = nccl.get_unique_id().hex()
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(number), key],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 7]
    assert outputs[0].strip() == "REMOTE_ERROR"
