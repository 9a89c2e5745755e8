"""How MPI ranks wait, and what they tell each other when waiting does not end.

The normal path costs nothing: a rank polls its request, giving way to other processes, and looks
for notices only once it has waited for a millisecond. A rank that has waited for too long says
where; ranks that wait there too answer, and the others are named as missing. Notices travel on
a communicator of their own.
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

__all__ = ["FailureDetector", "Place"]

_TAG = 1
_GRACE = 1.0
"""Seconds that ranks have to say where they wait, once one has waited for too long."""

_SHUTDOWN_GRACE = 3.0
"""Seconds that the others have to end on their own, once a rank has failed."""

_SHORT, _LONG = 5e-5, 1e-3
"""Seconds between two looks, soon and late in a wait."""

_BYTES_PER_SECOND = 1e8
"""What a slow transport moves: for as long as it takes, polling goes on without sleeping."""

_LONGEST = 2000
"""Characters of an exception that others are told."""


class Place(NamedTuple):
    """Where a rank waits: the operation, and its number among those of its group."""

    group: Any
    ranks: tuple[int, ...]
    number: int
    header: CallSignature

    def meets(self, other: Place) -> bool:
        """Return whether two ranks wait for each other."""
        return self.group == other.group and self.number == other.number


class _Failed(NamedTuple):
    text: str
    is_verdict: bool  # of waiting: those who wait for the same come to their own


class _Waiting(NamedTuple):
    place: Place
    wants_answer: bool


def _yield() -> None:
    time.sleep(0)


_give_way = getattr(os, "sched_yield", _yield)


class FailureDetector:
    """What one rank of the world knows of the others' troubles.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        A communicator of all ranks that nothing else uses.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._place: Place | None = None
        self._heard: dict[int, Place] = {}
        self._has_told = False
        self._failure: tuple[int, _Failed] | None = None
        self._sent: list[Any] = []
        # MPI may still write to the buffers of operations that were given up.
        self._given_up: list[tuple[MPI.Request, Any]] = []
        atexit.register(self.leave)

    def wait(
        self, request: MPI.Request, place: Place, timeout: float, nbytes: int, buffers: Any
    ) -> None:
        """Wait until `request` is complete.

        Raises
        ------
        CollectiveTimeoutError
            If it is not within `timeout` seconds.
        RankFailedError
            If a rank says that it has failed.
        RankMismatchError
            If ranks wait for each other in different operations.
        """
        if request.Test():
            return
        start = clock.monotonic()
        self._place = place
        try:
            while clock.monotonic() < start + _LONG:
                _give_way()
                if request.Test():
                    return
            self._wait_long(request, place, start, timeout, nbytes / _BYTES_PER_SECOND)
        except BaseException:
            self._given_up.append((request, buffers))
            raise
        finally:
            self._place = None
            self._has_told = False

    def announce_failure(self, error: BaseException) -> None:
        """Tell every rank that this one ends with `error`; only the first time counts."""
        if self._failure is None:
            is_verdict = isinstance(error, (CollectiveTimeoutError, RankMismatchError))
            text = describe_error(error)[:_LONGEST]  # short ones need no receiver
            notice = _Failed(text, is_verdict)
            self._failure = (self._comm.rank, notice)
            self._tell(notice, range(self._comm.size))

    def leave(self) -> None:
        """Wait until every rank leaves; end the whole job if one has failed and others stay.

        Called when the process exits: MPI's own end would wait for a failed rank for ever.
        """
        atexit.unregister(self.leave)
        error = getattr(sys, "last_value", None)  # what the program ended with, if anything
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
            self._abort()  # MPI's end would wait for what was given up

    def check(self, place: Place) -> None:
        """Raise RankFailedError if a rank is known to have failed."""
        if self._failure is not None:
            rank, notice = self._failure
            raise RankFailedError(
                f"rank {rank} ended with {notice.text}; rank {self._comm.rank} was in "
                f"{place.header}",
                rank,
            )

    # -- how ---------------------------------------------------------------------------------------

    def _wait_long(
        self, request: MPI.Request, place: Place, start: float, timeout: float, busy: float
    ) -> None:
        give_up = None
        while True:
            self._receive()
            if request.Test():  # after the notices: a rank may fail once the operation is over
                return
            now = clock.monotonic()
            if not (self._has_told and self._failure is not None and self._failure[1].is_verdict):
                self.check(place)
            if give_up is None and (self._has_told or now > start + timeout):
                self._tell_where()
                give_up = now + _GRACE
            if give_up is not None and now > give_up:
                raise self._verdict(place, timeout)
            if now < start + busy:
                _give_way()
            else:
                clock.sleep(min(_LONG, max(_SHORT, (now - start) / 100)))

    def _receive(self) -> None:
        """Read the notices that have come, and answer them."""
        while (message := self._comm.improbe(tag=_TAG)) is not None:
            status = _status()
            notice = message.recv(status)
            rank = status.source
            if isinstance(notice, _Failed):
                self._failure = self._failure or (rank, notice)
                continue
            self._heard[rank] = notice.place
            if self._place is None or not notice.wants_answer:
                continue
            if self._place.meets(notice.place):
                self._tell_where()
            else:
                self._tell(_Waiting(self._place, wants_answer=False), [rank])

    def _tell_where(self) -> None:
        """Tell the other members where this rank waits, once."""
        if not self._has_told and self._place is not None:
            self._has_told = True
            # Who waits elsewhere may have moved on; who still does will answer.
            self._heard = {
                rank: place for rank, place in self._heard.items() if self._place.meets(place)
            }
            self._tell(_Waiting(self._place, wants_answer=True), self._place.ranks)

    def _tell(self, notice: _Failed | _Waiting, ranks: Any) -> None:
        for rank in ranks:
            if rank != self._comm.rank:
                self._sent.append(self._comm.isend(notice, rank, _TAG))

    def _verdict(self, place: Place, timeout: float) -> DistributedError:
        said = {self._comm.rank: place, **self._heard}
        there = {rank: said[rank].header for rank in place.ranks if _is_at(said.get(rank), place)}
        missing = [rank for rank in place.ranks if rank not in there]
        elsewhere = "".join(
            f"; rank {rank} waits in {said[rank].header} of ranks {said[rank].ranks}"
            for rank in missing
            if rank in said
        )
        if len(set(there.values())) > 1:
            return mismatch_error(there)
        if missing:
            return CollectiveTimeoutError(
                f"expected ranks {missing} to come to {place.header} within {timeout:g} s"
                f"{elsewhere}; every rank of the group must call it, or raise timeout"
            )
        return CollectiveTimeoutError(
            f"every rank came to {place.header}, but it did not end within {timeout:g} s; they may "
            f"have given arrays that do not fit: set NBRT_DISTRIBUTED_CHECK=1, or raise timeout"
        )

    def _is_stuck(self) -> bool:
        return any(not request.Test() for request, _ in self._given_up)

    def _abort(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(1)


def _is_at(found: Place | None, place: Place) -> bool:
    return found is not None and found.meets(place)


def _status() -> MPI.Status:
    from mpi4py import MPI

    return MPI.Status()
