"""`ThreadWorld`: collective operations of ranks that are threads, one meeting for each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from nbrt._internal import clock
from nbrt.distributed.communicators.signatures import describe_error, mismatch_error
from nbrt.errors import CollectiveTimeoutError, DistributedError, RankFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.distributed.communicators.signatures import CallSignature

__all__ = ["Member", "ThreadWorld"]


class Member(NamedTuple):
    """A rank of a group: its number there, the group's world ranks, and seconds to wait."""

    rank: int
    ranks: tuple[int, ...]
    timeout: float


class _Meeting:
    """One operation of a group: the contributions of its ranks, and its outcome."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.signatures: dict[int, CallSignature] = {}
        self.contributions: dict[int, Any] = {}
        self.gates: list[threading.Lock] = []
        """An acquired lock for each waiting rank; its release wakes the rank."""
        self.result: list[Any] | None = None
        self.error: DistributedError | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.contributions) == len(self.ranks)

    def missing(self) -> list[int]:
        return [rank for at, rank in enumerate(self.ranks) if at not in self.contributions]

    def expected(self) -> str:
        """Return the start of an error message: the missing ranks and the operation."""
        return f"expected ranks {self.missing()} to come to {next(iter(self.signatures.values()))}"

    def end(self, error: DistributedError | None, result: list[Any] | None = None) -> None:
        """Set the outcome, once, and wake the waiting ranks."""
        if self.error is None and self.result is None:
            self.error, self.result = error, result
            # A meeting with missing ranks stays in the table: drop the arrays.
            self.contributions = dict.fromkeys(self.contributions)
            for gate in self.gates:
                gate.release()

    def outcome(self) -> list[Any]:
        if self.error is not None:
            raise _copy_error(self.error)
        assert self.result is not None
        return self.result


class ThreadWorld:
    """The state that the ranks of one `run` share.

    Parameters
    ----------
    size : int
        Number of ranks.

    Attributes
    ----------
    failure : tuple of int and BaseException, or None
        The first rank that ended with an exception, and the exception.
    running : set of int
        The ranks that run their functions.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: tuple[int, BaseException] | None = None
        self._lock = threading.Lock()
        self._meetings: dict[Hashable, _Meeting] = {}
        self.running: set[int] = set()
        self._ended: set[int] = set()
        self._owners: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def begin(self, rank: int) -> None:
        """Record that a rank runs its function, until `fail` or `end`."""
        with self._lock:
            self.running.add(rank)

    def fail(self, rank: int, error: BaseException) -> None:
        """Record that a rank ended with an exception, and wake the ranks that wait for it.

        Rank -1 is the caller of `run`. Only the first exception counts.
        """
        with self._lock:
            self.running.discard(rank)
            if self.failure is None:
                self.failure = (rank, error)
            self._end_hopeless()

    def end(self, rank: int) -> None:
        """Record that a rank returned, and wake the ranks that wait for it."""
        with self._lock:
            self.running.discard(rank)
            self._ended.add(rank)
            self._end_hopeless()

    def owner(self, resource: object, rank: int) -> int:
        """Return the rank of the first call with a resource."""
        with self._lock:
            return self._owners.setdefault(resource, rank)

    def meet(
        self,
        member: Member,
        key: Hashable,
        signature: CallSignature,
        contribution: Any,
        combine: Callable[[list[Any]], list[Any]] | None,
    ) -> list[Any]:
        """Wait for the other members of a group; return all contributions, or their combination."""
        gate = threading.Lock()
        with self._lock:
            meeting = self._meetings.get(key) or self._meetings.setdefault(
                key, _Meeting(member.ranks)
            )
            meeting.signatures[member.rank] = signature
            meeting.contributions[member.rank] = contribution
            is_last = meeting.is_complete
            if is_last:
                del self._meetings[key]
            elif meeting.error is None:
                gate.acquire()
                meeting.gates.append(gate)
                self._end_if_hopeless(meeting)
        if is_last:
            # No other rank reaches this meeting any more, so combining needs no lock.
            _complete(meeting, member, combine)
        elif not clock.acquire(gate, member.timeout):
            self._time_out(meeting, gate, member.timeout)
        return meeting.outcome()

    def _time_out(self, meeting: _Meeting, gate: threading.Lock, seconds: float) -> None:
        with self._lock:
            if not meeting.is_complete:
                meeting.end(
                    CollectiveTimeoutError(
                        f"{meeting.expected()} within {seconds:g} s; every rank of the group must "
                        f"call it, or raise timeout"
                    )
                )
        gate.acquire()  # The meeting may have become complete: wait for its outcome.

    def _end_hopeless(self) -> None:
        for meeting in self._meetings.values():
            self._end_if_hopeless(meeting)

    def _end_if_hopeless(self, meeting: _Meeting) -> None:
        """End a meeting whose missing ranks have failed or returned."""
        if self.failure is not None:
            rank, error = self.failure
            who = f"rank {rank}" if rank >= 0 else "the caller of run"
            meeting.end(
                RankFailedError(
                    f"{meeting.expected()}, but {who} ended with {describe_error(error)}", rank
                )
            )
            return
        gone = [rank for rank in meeting.missing() if rank in self._ended]
        if gone:
            meeting.end(
                CollectiveTimeoutError(
                    f"{meeting.expected()}, but {gone} have returned; every rank of a group must "
                    f"call the same operations"
                )
            )


def _complete(
    meeting: _Meeting, member: Member, combine: Callable[[list[Any]], list[Any]] | None
) -> None:
    """Set the outcome of a complete meeting, unless ranks timed out in it before."""
    if meeting.error is not None:
        return
    signatures = {member.ranks[rank]: said for rank, said in meeting.signatures.items()}
    error: DistributedError | None = None
    if len(set(signatures.values())) > 1:
        error = mismatch_error(signatures)
    result = None
    if error is None:
        result = [meeting.contributions[rank] for rank in range(len(member.ranks))]
        try:
            if combine is not None:
                result = combine(result)
        except DistributedError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001  # every rank of the group raises it
            error = DistributedError(
                f"rank {member.ranks[member.rank]} could not combine the contributions to "
                f"{meeting.signatures[member.rank]}: {raised!r}"
            )
            error.__cause__ = raised
    meeting.end(error, result)


def _copy_error(error: DistributedError) -> DistributedError:
    """Return a copy of an error for one thread: a shared one would collect all tracebacks."""
    rank = (error.rank,) if isinstance(error, RankFailedError) else ()
    copied = type(error)(str(error), *rank)
    copied.__cause__ = error.__cause__
    return copied
