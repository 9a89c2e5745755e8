"""`FailureDetector`: waits of MPI ranks, with timeouts and diagnoses.

The normal path costs nothing: a rank polls its request, giving way to other processes, and looks
for notices only once it has waited for a millisecond. A rank that has waited for too long says
where; ranks that wait there too answer, and the others are named as missing. Notices travel on
a separate communicator.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt._internal import clock
from nbrt.distributed.communicators.signatures import CallSignature, describe_error, mismatch_error
from nbrt.errors import (
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
    RankMismatchError,
)

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["FailureDetector", "WaitPoint"]

_TAG = 1
_GRACE = 1.0
"""Seconds to wait for the reports of other ranks after a timeout."""

_SHUTDOWN_GRACE = 3.0
"""Seconds that other ranks have to end after a rank has failed."""

_SHORT, _LONG = 5e-5, 1e-3
"""Seconds between two polls, at the start of a wait and later."""

_BYTES_PER_SECOND = 1e8
"""Speed of a slow transport; during the transfer time, polling does not sleep."""

_MAX_TEXT = 2000
"""Characters of an exception that other ranks receive."""


class WaitPoint(NamedTuple):
    """The operation in which a rank waits, and its number in the group."""

    group: Any
    ranks: tuple[int, ...]
    number: int
    signature: CallSignature

    def meets(self, other: WaitPoint) -> bool:
        """Return whether two ranks wait for each other."""
        return self.group == other.group and self.number == other.number


class _Failed(NamedTuple):
    text: str
    is_diagnosis: bool  # ranks that wait at the same point reach the same diagnosis


class _Waiting(NamedTuple):
    point: WaitPoint
    wants_answer: bool


def _yield() -> None:
    time.sleep(0)


_yield_cpu = getattr(os, "sched_yield", _yield)


class FailureDetector:
    """The knowledge of one rank about waiting and failed ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        A communicator of all ranks that nothing else uses.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._point: WaitPoint | None = None
        self._reported: dict[int, WaitPoint] = {}
        self._has_announced = False
        self._failure: tuple[int, _Failed] | None = None
        self._sent: list[Any] = []
        # MPI may still write to the buffers of abandoned operations.
        self._abandoned: list[tuple[MPI.Request, Any]] = []
        atexit.register(self.leave)

    def wait(
        self, request: MPI.Request, point: WaitPoint, timeout: float, nbytes: int, buffers: Any
    ) -> None:
        """Wait until `request` is complete.

        Raises
        ------
        CollectiveTimeoutError
            If it does not complete within `timeout` seconds.
        RankFailedError
            If a rank reports a failure.
        RankMismatchError
            If ranks wait for each other in different operations.
        """
        if request.Test():
            return
        start = clock.monotonic()
        self._point = point
        try:
            while clock.monotonic() < start + _LONG:
                _yield_cpu()
                if request.Test():
                    return
            self._wait_long(request, point, start, timeout, nbytes / _BYTES_PER_SECOND)
        except BaseException:
            self._abandoned.append((request, buffers))
            raise
        finally:
            self._point = None
            self._has_announced = False

    def announce_failure(self, error: BaseException) -> None:
        """Notify every rank that this one ends with `error`; only the first call counts."""
        if self._failure is None:
            is_diagnosis = isinstance(error, (CollectiveTimeoutError, RankMismatchError))
            text = describe_error(error)[:_MAX_TEXT]  # short messages need no posted receive
            notice = _Failed(text, is_diagnosis)
            self._failure = (self._comm.rank, notice)
            self._send(notice, range(self._comm.size))

    def leave(self) -> None:
        """Wait for every rank to leave; end the job if a rank has failed and others stay.

        Runs when the process exits: MPI's finalisation would wait for a failed rank forever.
        """
        atexit.unregister(self.leave)
        error = getattr(sys, "last_value", None)  # the uncaught exception of the program
        if error is not None and not hasattr(sys, "ps1"):
            self.announce_failure(error)
        deadline = None
        request = self._comm.Ibarrier()
        while not request.Test():
            self._receive()
            if deadline is None and (self._failure is not None or self._is_stuck()):
                deadline = clock.monotonic() + _SHUTDOWN_GRACE
            if deadline is not None and clock.monotonic() > deadline:
                self._abort()
            clock.sleep(_LONG)
        if self._is_stuck():
            self._abort()  # MPI would wait for the abandoned operations

    def check(self, point: WaitPoint) -> None:
        """Raise RankFailedError if a rank is known to have failed."""
        if self._failure is not None:
            rank, notice = self._failure
            raise RankFailedError(
                f"rank {rank} ended with {notice.text}; rank {self._comm.rank} was in "
                f"{point.signature}",
                rank,
            )

    def _wait_long(
        self, request: MPI.Request, point: WaitPoint, start: float, timeout: float, busy: float
    ) -> None:
        give_up = None
        while True:
            self._receive()
            if request.Test():  # after the notices: a rank may fail after the operation
                return
            now = clock.monotonic()
            if not (
                self._has_announced and self._failure is not None and self._failure[1].is_diagnosis
            ):
                self.check(point)
            if give_up is None and (self._has_announced or now > start + timeout):
                self._announce_point()
                give_up = now + _GRACE
            if give_up is not None and now > give_up:
                raise self._diagnose(point, timeout)
            if now < start + busy:
                _yield_cpu()
            else:
                clock.sleep(min(_LONG, max(_SHORT, (now - start) / 100)))

    def _receive(self) -> None:
        """Read the notices that have arrived, and answer them."""
        while (message := self._comm.improbe(tag=_TAG)) is not None:
            status = _status()
            notice = message.recv(status)
            rank = status.source
            if isinstance(notice, _Failed):
                self._failure = self._failure or (rank, notice)
                continue
            self._reported[rank] = notice.point
            if self._point is None or not notice.wants_answer:
                continue
            if self._point.meets(notice.point):
                self._announce_point()
            else:
                self._send(_Waiting(self._point, wants_answer=False), [rank])

    def _announce_point(self) -> None:
        """Send the point at which this rank waits to the other members, once."""
        if not self._has_announced and self._point is not None:
            self._has_announced = True
            # Ranks at other points may have moved on; those that still wait will answer.
            self._reported = {
                rank: point for rank, point in self._reported.items() if self._point.meets(point)
            }
            self._send(_Waiting(self._point, wants_answer=True), self._point.ranks)

    def _send(self, notice: _Failed | _Waiting, ranks: Any) -> None:
        for rank in ranks:
            if rank != self._comm.rank:
                self._sent.append(self._comm.isend(notice, rank, _TAG))

    def _diagnose(self, point: WaitPoint, timeout: float) -> DistributedError:
        said = {self._comm.rank: point, **self._reported}
        there = {
            rank: said[rank].signature for rank in point.ranks if _is_at(said.get(rank), point)
        }
        missing = [rank for rank in point.ranks if rank not in there]
        elsewhere = "".join(
            f"; rank {rank} waits in {said[rank].signature} of ranks {said[rank].ranks}"
            for rank in missing
            if rank in said
        )
        if len(set(there.values())) > 1:
            return mismatch_error(there)
        if missing:
            return CollectiveTimeoutError(
                f"expected ranks {missing} to come to {point.signature} within {timeout:g} s"
                f"{elsewhere}; every rank of the group must call it, or raise timeout"
            )
        return CollectiveTimeoutError(
            f"every rank came to {point.signature}, but it did not end within {timeout:g} s; their "
            f"arrays may not match: set NBRT_DISTRIBUTED_CHECK=1, or raise timeout"
        )

    def _is_stuck(self) -> bool:
        return any(not request.Test() for request, _ in self._abandoned)

    def _abort(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(1)


def _is_at(other: WaitPoint | None, point: WaitPoint) -> bool:
    return other is not None and other.meets(point)


def _status() -> MPI.Status:
    from mpi4py import MPI

    return MPI.Status()
