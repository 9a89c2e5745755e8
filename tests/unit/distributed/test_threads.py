"""Ranks that are threads: every operation, and what happens when ranks do not do their part."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT, JumpingClock, ManualClock
from helpers.collectives import CASES
from nbrt.distributed.communicators.base import Communicator
from nbrt.distributed.communicators.thread_rendezvous import ThreadWorld
from nbrt.distributed.communicators.threads import ThreadCommunicator, thread_world
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveTimeoutError,
    DistributedError,
    NbrtError,
    RankFailedError,
    RankMismatchError,
)
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

ONES = np.ones(2, "f4")
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda comm: comm.broadcast(ONES),
    "all_reduce": lambda comm: comm.all_reduce(ONES),
    "all_gather": lambda comm: comm.all_gather(ONES),
    "reduce_scatter": lambda comm: comm.reduce_scatter([ONES] * comm.size),
    "all_to_all": lambda comm: comm.all_to_all([ONES] * comm.size),
    "scatter": lambda comm: comm.scatter([ONES] * comm.size if comm.rank == 0 else None, ONES + 0),
    "barrier": lambda comm: comm.barrier(),
    "all_gather_object": lambda comm: comm.all_gather_object(1),
    "broadcast_object": lambda comm: comm.broadcast_object(1),
}
every_operation = pytest.mark.parametrize("name", OPERATIONS)


@pytest.fixture
def manual_clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    manual = ManualClock()
    manual.install(monkeypatch)
    return manual


def outcomes(
    ranks: int, function: Callable[[ThreadCommunicator], Any], timeout: float = HANG_TIMEOUT
) -> list[Any]:
    """Run a function on plain threads; return what each rank returned or raised.

    Without `run`, so that a rank which raised stays in the world.
    """
    _, members = thread_world([nbrt.Device("cpu", rank % 4) for rank in range(ranks)], timeout)
    found: list[Any] = [None] * ranks

    def work(rank: int) -> None:
        try:
            found[rank] = function(members[rank])
        except Exception as error:  # noqa: BLE001  # the test looks at it
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


# -- every operation -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_case_of_a_communicator(ranks: int) -> None:
    def cases() -> None:
        for case in CASES:
            case(dist.world())

    dist.run(cases, ranks=ranks, timeout=HANG_TIMEOUT)


def test_every_case_in_groups_side_by_side() -> None:
    def cases() -> None:
        world = dist.world()
        members = [rank for rank in range(5) if rank % 2 == world.rank % 2]
        group = world.group(members[::-1])
        for case in CASES:
            case(group)

    dist.run(cases, ranks=5, timeout=HANG_TIMEOUT)


def test_a_process_alone_is_a_world_of_one() -> None:
    for case in CASES:
        case(thread_world([None])[1][0])


def test_threads_are_communicators() -> None:
    _, members = thread_world([nbrt.Device("cpu", 1)] * 2)
    assert all(isinstance(each, Communicator) for each in members)
    assert repr(members[1]) == "ThreadCommunicator(rank=1, size=2, device='cpu:1')"


def test_an_operation_waits_for_the_streams_work() -> None:
    def rank() -> list[float]:
        stream = nbrt.Stream(dist.world().device)
        array = nbrt.zeros(4, np.float64, stream=stream)
        with Latch() as latch, nbrt.stream(stream):
            latch.hold(stream)
            stream.call(array.fill, dist.get_rank() + 1.0)
            # Opened by another thread while this one waits in the operation, or before.
            opener = threading.Thread(target=latch.release)
            opener.start()
            total = dist.world().all_reduce(array)
            opener.join()
            stream.synchronize()
            return [float(value) for value in total]

    assert dist.run(rank, ranks=2, timeout=HANG_TIMEOUT) == [[3.0] * 4] * 2


def test_ranks_of_a_world_know_each_other_by_their_numbers_in_it() -> None:
    def ranks() -> Any:
        world = dist.world()
        odd = world.group([3, 1]) if world.rank % 2 else world.group([0, 2])
        inner = odd.group([1, 0])
        return odd.rank, odd.ranks, inner.rank, inner.ranks

    assert dist.run(ranks, ranks=4, timeout=HANG_TIMEOUT) == [
        (0, (0, 2), 1, (2, 0)),
        (1, (3, 1), 0, (1, 3)),
        (1, (0, 2), 0, (2, 0)),
        (0, (3, 1), 1, (1, 3)),
    ]


# -- ranks that differ -----------------------------------------------------------------------------

DIFFERENT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "operation": (
        OPERATIONS["barrier"],
        OPERATIONS["all_reduce"],
        r"in barrier\(\), as ranks \[0, 1, 3\] are; rank 2 came to all_reduce\(shape=\(2,\), ",
    ),
    "shape": (
        OPERATIONS["all_reduce"],
        lambda comm: comm.all_reduce(np.ones(3, "f4")),
        r"rank 2 came to all_reduce\(shape=\(3,\), dtype=float32, op=sum\)",
    ),
    "dtype": (
        OPERATIONS["broadcast"],
        lambda comm: comm.broadcast(ONES.astype("f8")),
        r"rank 2 came to broadcast\(shape=\(2,\), dtype=float64, root=0\)",
    ),
    "root": (
        OPERATIONS["broadcast_object"],
        lambda comm: comm.broadcast_object(1, root=2),
        r"rank 2 came to broadcast_object\(root=2\)",
    ),
    "reduction": (
        OPERATIONS["all_reduce"],
        lambda comm: comm.all_reduce(ONES, "max"),
        "rank 2 came to all_reduce.*op=max",
    ),
    "shapes": (
        lambda comm: comm.all_gather(ONES, [(2,)] * 4),
        lambda comm: comm.all_gather(ONES, [(2,), (1,), (2,), (2,)]),
        r"rank 2 came to all_gather\(shape=\(\(2,\), \(1,\)",
    ),
    "parts": (
        OPERATIONS["reduce_scatter"],
        lambda comm: comm.reduce_scatter([ONES, ONES, ONES, ONES[:1]]),
        r"rank 2 came to reduce_scatter\(shape=\(\(2,\), \(2,\), \(2,\), \(1,\)\)",
    ),
    "what comes": (
        OPERATIONS["all_to_all"],
        lambda comm: comm.all_to_all([ONES] * 4, [(2,), (5,), (2,), (2,)]),
        r"rank 2 expected an array of shape \(5,\) from rank 1 in all_to_all, got \(2,\)",
    ),
    "what is filled": (
        OPERATIONS["scatter"],
        lambda comm: comm.scatter(None, np.ones(3, "f4")),
        r"shape \(3,\) for rank 2 in scatter, got float32 and \(2,\) from rank 0",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_every_rank_is_told_which_one_differs(what: str) -> None:
    usual, other, message = DIFFERENT[what]

    def differ(comm: ThreadCommunicator) -> Any:
        with pytest.raises(RankMismatchError, match=message):
            (other if comm.rank == 2 else usual)(comm)
        # The ranks still agree on the next operation.
        return comm.all_gather_object(comm.rank)

    assert outcomes(4, differ) == [[0, 1, 2, 3]] * 4


def test_members_of_a_group_are_named_by_their_numbers_in_the_world() -> None:
    def differ(comm: ThreadCommunicator) -> str:
        group = comm.group([3, 0, 1]) if comm.rank != 2 else comm.group([2])
        try:
            (group.barrier if comm.rank else lambda: group.all_gather_object(0))()
        except RankMismatchError as error:
            return str(error)
        return ""

    first, second, alone, last = outcomes(4, differ)
    assert first == second == last
    assert "ranks [1, 3] are; rank 0 came to all_gather_object()" in first
    assert alone == ""


def test_what_cannot_be_combined_is_an_error_on_every_rank() -> None:
    words = np.array(["a"], "S1")

    def add(comm: ThreadCommunicator) -> Any:
        with pytest.raises(DistributedError, match=r"could not combine .* all_reduce\(.*S1"):
            comm.all_reduce(words)
        return comm.all_gather_object(1)

    assert outcomes(2, add) == [[1, 1]] * 2


# -- ranks that do not come ------------------------------------------------------------------------


@every_operation
def test_a_timeout_names_the_missing_ranks(name: str, manual_clock: ManualClock) -> None:
    def wait(comm: ThreadCommunicator) -> None:
        if comm.rank not in (1, 2):
            OPERATIONS[name](comm)
        elif comm.rank == 1:
            manual_clock.wait_until_waiting(2)
            manual_clock.advance(0.05)

    first, *idle, last = outcomes(4, wait, timeout=0.05)
    assert idle == [None, None]
    # The first rank that times out ends the operation for all.
    for error in (first, last):
        assert type(error) is CollectiveTimeoutError
        assert isinstance(error, TimeoutError)
        assert f"ranks [1, 2] to come to {name}(" in str(error)
        assert "within 0.05 s" in str(error)


def test_ranks_that_come_late_get_the_error_too_and_keep_step(manual_clock: ManualClock) -> None:
    given_up = threading.Barrier(2, timeout=HANG_TIMEOUT)

    def rank(comm: ThreadCommunicator) -> Any:
        if comm.rank == 1:
            manual_clock.wait_until_waiting(1)
            manual_clock.advance(5)
            given_up.wait()
        else:
            comm.timeout = 5
        with pytest.raises(CollectiveTimeoutError, match=r"ranks \[1\] to come to barrier"):
            comm.barrier()
        if comm.rank == 0:
            given_up.wait()
        comm.timeout = HANG_TIMEOUT
        return comm.all_gather_object(comm.rank)

    assert outcomes(2, rank) == [[0, 1]] * 2


def test_timeouts_are_per_rank_and_inherited_by_groups() -> None:
    _, (member, _) = thread_world([None] * 2, 7)
    assert member.timeout == 7.0
    member.timeout = float("inf")
    assert member.group([0]).timeout == float("inf")
    for wrong in (0, -1, float("nan"), "1", True, None):
        with pytest.raises(ArgumentError, match="timeout in seconds greater than 0"):
            member.timeout = wrong  # type: ignore[assignment]
    assert member.timeout == float("inf")


def test_a_wait_may_be_without_end() -> None:
    def rank(comm: ThreadCommunicator) -> Any:
        comm.timeout = float("inf")
        return comm.all_gather_object(comm.rank)

    assert outcomes(3, rank) == [[0, 1, 2]] * 3


@every_operation
def test_a_rank_that_fails_ends_the_wait_of_the_others(name: str) -> None:
    seen: list[Any] = [None] * 3

    def rank() -> None:
        me = dist.get_rank()
        if me == 1:
            raise KeyError("lost")
        try:
            OPERATIONS[name](dist.world())
        except RankFailedError as error:
            seen[me] = error
            raise

    with pytest.raises(KeyError, match="lost"):
        dist.run(rank, ranks=3, timeout=HANG_TIMEOUT)
    for each in (seen[0], seen[2]):
        assert each.rank == 1
        assert "ranks [1" in str(each) or "ranks [0, 1]" in str(each)
        assert f"to come to {name}(" in str(each)
        assert "rank 1 ended with KeyError: 'lost'" in str(each)


@every_operation
def test_a_rank_that_returns_early_ends_the_wait_of_the_others(name: str) -> None:
    def rank() -> None:
        if dist.get_rank() != 2:
            OPERATIONS[name](dist.world())

    with pytest.raises(CollectiveTimeoutError, match=r"but \[2\] have returned") as caught:
        dist.run(rank, ranks=4, timeout=HANG_TIMEOUT)
    assert f"to come to {name}(" in str(caught.value)


@pytest.mark.parametrize(
    ("tell", "expected"),
    [
        (lambda world: world.end(1), CollectiveTimeoutError),
        (lambda world: world.fail(1, KeyError()), RankFailedError),
    ],
    ids=["returns", "fails"],
)
def test_ranks_that_wait_already_are_told(
    tell: Callable[[ThreadWorld], None], expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    check = ThreadWorld._end_if_hopeless

    def watched(world: ThreadWorld, current: Any) -> None:
        check(world, current)
        waiting.set()

    def wait() -> None:
        with pytest.raises(expected, match=r"ranks \[1\] to come to barrier"):
            member.barrier()
        told.append(True)

    monkeypatch.setattr(ThreadWorld, "_end_if_hopeless", watched)
    world, (member, _) = thread_world([None] * 2, HANG_TIMEOUT)
    told: list[bool] = []
    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(HANG_TIMEOUT)
    assert not told
    tell(world)
    thread.join(HANG_TIMEOUT)
    assert told == [True]


def test_groups_without_the_rank_that_failed_are_told_as_well() -> None:
    inside = threading.Barrier(2, timeout=HANG_TIMEOUT)

    def rank() -> None:
        world = dist.world()
        if world.rank == 0:
            inside.wait()
            raise KeyError("lost")
        group = world.group([1, 2])
        if world.rank == 1:
            inside.wait()
            group.barrier()
        else:
            # Comes only when rank 0 has failed, so to nothing but the error.
            with pytest.raises(RankFailedError):
                world.barrier()
            raise RankFailedError("rank 0 failed", 0)

    with pytest.raises(KeyError):
        dist.run(rank, ranks=3, timeout=HANG_TIMEOUT)


# -- nothing is left -------------------------------------------------------------------------------


def test_meetings_are_forgotten() -> None:
    world, members = thread_world([None] * 3)

    def work(member: ThreadCommunicator) -> None:
        for _ in range(3):
            for operation in OPERATIONS.values():
                operation(member)
        if member.rank == 1:
            with pytest.raises(RankMismatchError):
                member.all_gather_object(1)
        else:
            with pytest.raises(RankMismatchError):
                member.barrier()

    threads = [threading.Thread(target=work, args=(each,)) for each in members]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert world._meetings == {}


def test_what_was_given_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Value:
        def __deepcopy__(self, memo: Any) -> Value:
            copies.append(weakref.ref(made := Value()))
            return made

    copies: list[Any] = []
    JumpingClock().install(monkeypatch)
    _, (member, _) = thread_world([None] * 2, 5)
    with pytest.raises(CollectiveTimeoutError):
        member.all_gather_object(Value())
    gc.collect()
    assert copies
    assert [copy() for copy in copies] == [None] * len(copies)


def test_arrays_may_change_as_soon_as_the_operation_returns() -> None:
    def rank(comm: ThreadCommunicator) -> list[int]:
        mine, found = np.zeros(1000, np.int64), []
        for turn in range(50):
            mine[:] = turn * (comm.rank + 1)
            total = comm.all_reduce(mine)
            mine[:] = -1  # others may not have unpacked theirs yet
            found.append(int(total[0]))
            assert (total == total[0]).all()
        return found

    assert outcomes(3, rank) == [[6 * turn for turn in range(50)]] * 3


# -- bad arguments ---------------------------------------------------------------------------------

BAD: list[tuple[Callable[[Any], Any], type[NbrtError], str]] = [
    (lambda comm: comm.all_reduce(1.0), ArgumentTypeError, "expected an array, got float"),
    (lambda comm: comm.all_reduce([1.0]), ArgumentTypeError, "expected an array, got list"),
    (lambda comm: comm.all_reduce(ONES, "avg"), ArgumentError, "expected a reduction"),
    (lambda comm: comm.broadcast(ONES, 2), ArgumentError, r"root as a rank in \[0, 2\), got 2"),
    (lambda comm: comm.broadcast(ONES, -1), ArgumentError, "root as a rank"),
    (lambda comm: comm.broadcast(ONES, True), ArgumentError, "root as a rank"),
    (lambda comm: comm.broadcast_object(1, 0.0), ArgumentError, "root as a rank"),
    (lambda comm: comm.broadcast(np.array([{}])), ArgumentTypeError, "fixed-size elements"),
    (lambda comm: comm.all_gather(ONES, [(2,)]), ArgumentError, "a shape for each of 2 ranks"),
    (lambda comm: comm.all_gather(ONES, [(3,), (2,)]), ArgumentError, r"as shapes says of rank 0"),
    (lambda comm: comm.reduce_scatter([ONES]), ArgumentError, "an array for each of 2 ranks"),
    (lambda comm: comm.reduce_scatter(ONES), ArgumentError, "ranks, got ndarray"),
    (lambda comm: comm.all_to_all([ONES, ONES.astype("f8")]), ArgumentError, "one dtype"),
    (lambda comm: comm.scatter(None, ONES), ArgumentError, "ranks, got NoneType"),
    (lambda comm: comm.group([1]), ArgumentError, "a group with this rank, 0"),
    (lambda comm: comm.group([0, 0]), ArgumentError, "every rank once"),
    (lambda comm: comm.group([0, 2]), ArgumentError, r"ranks in \[0, 2\), got 2"),
    (lambda comm: comm.group([False, 1]), ArgumentError, "got False"),
    (lambda comm: comm.group([]), ArgumentError, "a group with this rank"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments_are_refused_before_anybody_is_met(number: int) -> None:
    call, kind, message = BAD[number]
    world, (member, _) = thread_world([None] * 2, 0.01)
    with pytest.raises(kind, match=message):
        call(member)
    assert world._meetings == {}
    assert member._count == 0
