"""`run`: ranks as threads, the state of each rank, and failures that reach the caller."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT, ManualClock
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
    RankMismatchError,
    StreamError,
    UnknownDeviceError,
)
from nbrt.testing import Latch


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


# -- what a rank has -------------------------------------------------------------------------------


def test_results_are_in_order_of_rank_whoever_ends_first() -> None:
    turns = [threading.Event() for _ in range(5)]
    turns[4].set()

    def rank() -> int:
        me = dist.get_rank()
        assert turns[me].wait(HANG_TIMEOUT)
        turns[me - 1].set()
        return 10 * me

    assert dist.run(rank, ranks=5) == [0, 10, 20, 30, 40]


def test_arguments_are_passed_on() -> None:
    shared = [1, 2]
    assert dist.run(lambda *given: given, shared, "x", ranks=2) == [(shared, "x")] * 2
    assert all(given[0] is shared for given in dist.run(lambda *given: given, shared, ranks=2))


def test_ranks_take_the_devices_in_turn() -> None:
    def device() -> tuple[str, str]:
        assert nbrt.empty(1).dtype  # where the current device is, there it is made
        return str(nbrt.current_device()), str(dist.world().device)

    expected = [(f"cpu:{rank % 4}",) * 2 for rank in range(6)]
    assert dist.run(device, ranks=6) == dist.run(device, ranks=6, device_type="cpu") == expected
    with nbrt.device("cpu:3"):
        assert dist.run(device, ranks=6) == expected
        assert str(nbrt.current_device()) == "cpu:3"


@pytest.mark.usefixtures("sample_backend")
def test_ranks_on_another_kind_of_device() -> None:
    def total() -> tuple[str, float]:
        found = dist.world().all_reduce(np.full(2, dist.get_rank() + 1.0))
        return dist.world().device.kind, float(found[0])

    assert dist.run(total, ranks=3, device_type="sample") == [("sample", 6.0)] * 3


def test_default_generators_are_the_ranks_own() -> None:
    def draws(seed: int | None) -> list[float]:
        if seed is not None:
            nbrt.random.manual_seed(seed + dist.get_rank(), "cpu:0")
            nbrt.random.manual_seed(seed + dist.get_rank(), "cpu:1")
        dist.world().barrier()  # all have seeded before anybody draws
        found = [float(value) for value in nbrt.random.rand(3)]
        dist.world().barrier()
        return found

    with nbrt.random.isolated_default_generators():
        nbrt.random.manual_seed(7)
        before = [nbrt.random.get_rng_state(f"cpu:{index}") for index in range(4)]
        first, second, fifth = (dist.run(draws, None, ranks=5)[rank] for rank in (0, 1, 4))
        # Each rank starts from a copy of the caller's, also those that share a device.
        assert first == second == fifth
        seeded = dist.run(draws, 11, ranks=2)
        nbrt.random.manual_seed(11, "cpu:0")
        assert seeded[0] == [float(value) for value in nbrt.random.rand(3)]
        assert seeded[0] != seeded[1]
        nbrt.random.manual_seed(7)
        after = [nbrt.random.get_rng_state(f"cpu:{index}") for index in range(4)]
        assert [each.tolist() for each in before] == [each.tolist() for each in after]


def test_the_callers_state_is_untouched() -> None:
    def disturb() -> None:
        nbrt.random.manual_seed(dist.get_rank())
        nbrt.random.rand(5)
        dist.DeviceMesh("cpu", [dist.get_rank()]).__enter__()
        nbrt.device("cpu:3").__enter__()

    def fail() -> None:
        disturb()
        raise KeyError

    generator = nbrt.default_generator("cpu:0")
    state, world = generator.get_state().tolist(), dist.world()
    dist.run(disturb, ranks=3)
    with pytest.raises(KeyError):
        dist.run(fail, ranks=3)
    assert nbrt.default_generator("cpu:0") is generator
    assert generator.get_state().tolist() == state
    assert dist.world() is world
    assert str(nbrt.current_device()) == "cpu:0"
    with pytest.raises(DistributedError, match="expected a device mesh"):
        dist.current_mesh()


def test_runs_nest() -> None:
    def inner(outer: int) -> tuple[int, int, float]:
        total = dist.world().all_reduce(np.array(float(outer)))
        return outer, dist.get_rank(), float(total)

    def outer() -> Any:
        me = dist.get_rank()
        with dist.DeviceMesh("cpu", [me]) as mesh:
            found = dist.run(inner, me, ranks=2)
            assert (dist.get_rank(), dist.current_mesh()) == (me, mesh)
        assert dist.world().all_gather_object(me) == [0, 1, 2]
        return found

    found = dist.run(outer, ranks=3)
    assert found == [[(me, 0, 2.0 * me), (me, 1, 2.0 * me)] for me in range(3)]


def test_many_ranks() -> None:
    def total() -> int:
        return int(dist.world().all_reduce(np.array(dist.get_rank())))

    assert dist.run(total, ranks=64) == [64 * 63 // 2] * 64


def test_one_rank() -> None:
    assert dist.run(dist.get_world_size, ranks=1) == [1]


# -- failures --------------------------------------------------------------------------------------


class Stop(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""


@pytest.mark.parametrize("kind", [KeyError, Stop, SystemExit, KeyboardInterrupt])
def test_the_exception_of_a_rank_is_raised_with_a_note(kind: type[BaseException]) -> None:
    raised = kind("lost")

    def rank() -> None:
        if dist.get_rank() == 2:
            raise raised
        dist.world().barrier()

    with pytest.raises(kind) as caught:
        dist.run(rank, ranks=4, timeout=HANG_TIMEOUT)
    assert caught.value is raised
    assert notes(caught.value) == ["raised by rank 2 of 4"]


def test_the_first_failure_counts_and_what_follows_from_it_is_a_note() -> None:
    def rank() -> None:
        try:
            if dist.get_rank() == 3:
                raise KeyError("first")
            dist.world().barrier()
        except RankFailedError as error:
            if dist.get_rank() == 1:
                raise ValueError("second") from error
            raise

    with pytest.raises(KeyError, match="first") as caught:
        dist.run(rank, ranks=4, timeout=HANG_TIMEOUT)
    assert notes(caught.value) == [
        "raised by rank 3 of 4",
        "rank 1 raised ValueError: second",
    ]


class SpeechlessError(Exception):
    """As errors are whose text is made of attributes that they do not have."""

    def __str__(self) -> str:
        raise AttributeError("text")

    __repr__ = __str__


def test_an_exception_without_a_text_reaches_the_others() -> None:
    heard: list[str] = []

    def rank() -> None:
        if dist.get_rank() == 2:
            raise SpeechlessError
        try:
            dist.world().barrier()
        except RankFailedError as error:
            heard.append(str(error))
            if dist.get_rank() == 1:
                raise SpeechlessError from error
            raise

    with pytest.raises(SpeechlessError) as caught:
        dist.run(rank, ranks=3, timeout=HANG_TIMEOUT)
    assert notes(caught.value) == ["raised by rank 2 of 3", "rank 1 raised the same"]
    assert len(heard) == 2
    assert all(
        "rank 2 ended with SpeechlessError (its text cannot be shown)" in each for each in heard
    )


def test_an_asynchronous_function_is_refused() -> None:
    async def rank() -> None: ...

    with pytest.raises(ArgumentTypeError, match="may call asyncio"):
        dist.run(rank, ranks=2)


def test_equal_failures_are_told_once() -> None:
    together = threading.Barrier(4, timeout=HANG_TIMEOUT)

    def rank() -> None:
        together.wait()
        raise KeyError("all")

    with pytest.raises(KeyError) as caught:
        dist.run(rank, ranks=4, timeout=HANG_TIMEOUT)
    by, others = notes(caught.value)
    first = int(by.split()[3])
    rest = ", ".join(str(rank) for rank in range(4) if rank != first)
    assert (by, others) == (f"raised by rank {first} of 4", f"ranks {rest} raised the same")


def test_a_mismatch_reaches_the_caller() -> None:
    def rank() -> None:
        dist.world().broadcast(np.ones(2 + (dist.get_rank() == 1)))

    with pytest.raises(RankMismatchError, match=r"rank 1 came to broadcast\(shape=\(3,\)"):
        dist.run(rank, ranks=3, timeout=HANG_TIMEOUT)


def test_a_timeout_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    manual = ManualClock()
    manual.install(monkeypatch)

    def rank() -> None:
        if dist.get_rank() == 1:
            manual.wait_until_waiting(2)
            manual.advance(5)
            assert over.wait(HANG_TIMEOUT)
            return
        try:
            dist.world().barrier()
        finally:
            over.set()

    with pytest.raises(
        CollectiveTimeoutError, match=r"ranks \[1\] to come to barrier.. within 5 s"
    ):
        dist.run(rank, ranks=3, timeout=5)


def test_a_rank_may_recover_from_the_failure_of_another() -> None:
    def rank() -> str:
        if dist.get_rank() == 0:
            raise KeyError("lost")
        with pytest.raises(RankFailedError, match="rank 0 ended with KeyError"):
            dist.world().barrier()
        # Nothing that needs rank 0 will come any more, in any group; others go on.
        with pytest.raises(RankFailedError):
            dist.world().group([0, dist.get_rank()]).barrier()
        recovered.append(dist.get_rank())
        return "recovered"

    recovered: list[int] = []
    with pytest.raises(KeyError):
        dist.run(rank, ranks=3, timeout=HANG_TIMEOUT)
    assert sorted(recovered) == [1, 2]


def test_ranks_that_stay_busy_after_a_failure_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    released, ended = threading.Event(), threading.Event()
    manual = ManualClock()
    manual.install(monkeypatch)

    def rank() -> None:
        if dist.get_rank() == 1:
            raise KeyError("lost")
        if dist.get_rank() == 2:
            for each in threading.enumerate():
                if each.name in {"nbrt rank 0", "nbrt rank 1"}:
                    each.join(HANG_TIMEOUT)
            # The caller sets its deadline at some time after the failure.
            while not released.wait(0.001):
                manual.advance(5)
            ended.set()

    try:
        with pytest.raises(DistributedError, match=r"KeyError: 'lost', and ranks \[2\] are still"):
            dist.run(rank, ranks=3, timeout=5)
    finally:
        released.set()
    assert ended.wait(HANG_TIMEOUT)


def test_a_caller_that_is_interrupted_stops_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RankFailedError] = []
    waiting, told = threading.Event(), threading.Event()

    def rank() -> None:
        if dist.get_rank() == 0:
            told.wait(HANG_TIMEOUT)
            return
        try:
            waiting.set()
            dist.world().barrier()
        except RankFailedError as error:
            seen.append(error)
            told.set()

    class Interrupted:
        def put(self, ended: object) -> None: ...

        def get(self, timeout: float | None) -> None:
            assert waiting.wait(HANG_TIMEOUT)
            raise KeyboardInterrupt

    monkeypatch.setattr("nbrt.distributed.launch.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        dist.run(rank, ranks=2, timeout=HANG_TIMEOUT)
    assert told.wait(HANG_TIMEOUT)
    assert seen[0].rank == -1
    assert "the caller of run ended with KeyboardInterrupt" in str(seen[0])


def test_a_failed_stream_fails_its_rank() -> None:
    def rank() -> None:
        if dist.get_rank() == 1:
            stream = nbrt.Stream(dist.world().device)
            stream.call(_fail)
            stream.synchronize()
        dist.world().barrier()

    with pytest.raises(StreamError, match="_fail failed") as caught:
        dist.run(rank, ranks=2, timeout=HANG_TIMEOUT)
    assert notes(caught.value)[-1] == "raised by rank 1 of 2"


def test_an_operation_does_not_wait_for_streams_it_is_not_on() -> None:
    def rank() -> list[int]:
        with Latch() as latch:
            latch.hold(nbrt.Stream(dist.world().device))
            return [int(one) for one in dist.world().all_gather_object(dist.get_rank())]

    assert dist.run(rank, ranks=2, timeout=HANG_TIMEOUT) == [[0, 1]] * 2


def _fail() -> None:
    raise ZeroDivisionError


# -- bad arguments ---------------------------------------------------------------------------------


def test_bad_arguments_are_refused() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ArgumentTypeError, match=r"expected a function to run, .*, got 5"):
        dist.run(5, ranks=2)  # type: ignore[arg-type]
    for wrong in (2.0, "2", True, None):
        with pytest.raises(ArgumentTypeError, match="expected ranks as an int"):
            dist.run(int, ranks=wrong)  # type: ignore[arg-type]
    for many in (0, -1, 5000):
        with pytest.raises(ArgumentError, match=f"from 1 to 4096 ranks, got {many}"):
            dist.run(int, ranks=many)
    for timeout in (0, -1.0, float("nan"), "1"):
        with pytest.raises(ArgumentError, match="timeout in seconds"):
            dist.run(int, ranks=2, timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(UnknownDeviceError, match="cpx"):
        dist.run(int, ranks=2, device_type="cpx")
    assert set(threading.enumerate()) <= before  # threads of streams may have ended
    assert dist.run(int, ranks=np.int64(2)) == [0, 0]  # type: ignore[arg-type]


def test_threads_that_cannot_start_end_those_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    told = threading.Event()
    start = threading.Thread.start

    def rank() -> None:
        try:
            dist.world().barrier()
        except RankFailedError as error:
            seen.append(error.rank)
            told.set()
            raise

    def limited(thread: threading.Thread) -> None:
        if thread.name == "nbrt rank 1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        dist.run(rank, ranks=2, timeout=HANG_TIMEOUT)
    assert told.wait(HANG_TIMEOUT)
    assert seen == [-1]
