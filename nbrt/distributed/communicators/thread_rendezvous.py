"""Where ranks that are threads meet: one round for each operation of each group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nbrt._internal import clock
from nbrt.distributed.communicators.signatures import described, disagreement
from nbrt.errors import CollectiveTimeoutError, DistributedError, RankFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.distributed.communicators.signatures import Header
    from nbrt.distributed.communicators.threads import ThreadCommunicator

__all__ = ["World"]


class _Round:
    """One operation of a group: who came, with what, and how it ends."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.headers: dict[int, Header] = {}
        self.given: dict[int, Any] = {}
        self.gates: list[threading.Lock] = []
        """A lock for each waiting rank, which it holds itself: released, it may go."""
        self.result: list[Any] | None = None
        self.error: DistributedError | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.given) == len(self.ranks)

    def missing(self) -> list[int]:
        return [rank for at, rank in enumerate(self.ranks) if at not in self.given]

    def expected(self) -> str:
        """Return who should have come where, for a message."""
        return f"expected ranks {self.missing()} to come to {next(iter(self.headers.values()))}"

    def end(self, error: DistributedError | None, result: list[Any] | None = None) -> None:
        """Give the waiting ranks an error or a result, once, and let them go."""
        if self.error is None and self.result is None:
            self.error, self.result = error, result
            self.given = dict.fromkeys(self.given)  # a round may stay for those who never come
            for gate in self.gates:
                gate.release()

    def outcome(self) -> list[Any]:
        if self.error is not None:
            raise _again(self.error)
        assert self.result is not None
        return self.result


class World:
    """What the ranks of one `run` share.

    Parameters
    ----------
    size : int
        How many they are.

    Attributes
    ----------
    failure : tuple of int and BaseException, or None
        The first rank that ended with an exception, and the exception.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: tuple[int, BaseException] | None = None
        self._lock = threading.Lock()
        self._rounds: dict[Hashable, _Round] = {}
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self._owners: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def begin(self, rank: int) -> None:
        """Note that a rank runs its function from here on, until `fail` or `end`."""
        with self._lock:
            self._running.add(rank)

    def is_running(self, rank: int) -> bool:
        """Return whether a rank is in the middle of its function."""
        return rank in self._running

    def fail(self, rank: int, error: BaseException) -> None:
        """Tell all ranks that one has ended with an exception; the first one counts.

        Parameters
        ----------
        rank : int
            Its number; -1 for whoever started the ranks.
        error : BaseException
            The exception.
        """
        with self._lock:
            self._running.discard(rank)
            if self.failure is None:
                self.failure = (rank, error)
            self._end_hopeless()

    def end(self, rank: int) -> None:
        """Tell all ranks that one has returned, and will not come to anything any more."""
        with self._lock:
            self._running.discard(rank)
            self._ended.add(rank)
            self._end_hopeless()

    def owner(self, thing: object, rank: int) -> int:
        """Return the rank that this was first asked for about a thing, which is `rank` if new."""
        with self._lock:
            return self._owners.setdefault(thing, rank)

    def meet(
        self,
        member: ThreadCommunicator,
        key: Hashable,
        header: Header,
        given: Any,
        combine: Callable[[list[Any]], list[Any]] | None,
    ) -> list[Any]:
        """Wait for the other members of a group; return what all gave, or `combine` made of it."""
        gate = threading.Lock()
        with self._lock:
            current = self._rounds.get(key) or self._rounds.setdefault(key, _Round(member.ranks))
            current.headers[member.rank] = header
            current.given[member.rank] = given
            is_last = current.is_complete
            if is_last:
                del self._rounds[key]
            elif current.error is None:
                gate.acquire()
                current.gates.append(gate)
                self._end_if_hopeless(current)
        if is_last:
            # Nobody else may come any more, so what takes time needs no lock.
            _settle(current, member, combine)
        elif not clock.acquire(gate, member.timeout):
            self._time_out(current, gate, member.timeout)
        return current.outcome()

    def _time_out(self, current: _Round, gate: threading.Lock, seconds: float) -> None:
        with self._lock:
            if not current.is_complete:
                current.end(
                    CollectiveTimeoutError(
                        f"{current.expected()} within {seconds:g} s; every rank of the group must "
                        f"call it, or raise timeout"
                    )
                )
        gate.acquire()  # All came after all, and the last one is at it.

    def _end_hopeless(self) -> None:
        for current in self._rounds.values():
            self._end_if_hopeless(current)

    def _end_if_hopeless(self, current: _Round) -> None:
        """End a round to which not all will come."""
        if self.failure is not None:
            rank, error = self.failure
            who = f"rank {rank}" if rank >= 0 else "whoever started the ranks"
            current.end(
                RankFailedError(
                    f"{current.expected()}, but {who} ended with {described(error)}",
                    rank,
                )
            )
            return
        gone = [rank for rank in current.missing() if rank in self._ended]
        if gone:
            current.end(
                CollectiveTimeoutError(
                    f"{current.expected()}, but {gone} have returned; every rank of a group must "
                    f"call the same operations"
                )
            )


def _settle(
    current: _Round,
    member: ThreadCommunicator,
    combine: Callable[[list[Any]], list[Any]] | None,
) -> None:
    """End a round to which all have come, unless it has ended for those who came in time."""
    if current.error is not None:
        return
    world = {member.ranks[rank]: header for rank, header in current.headers.items()}
    error: DistributedError | None = None
    if len(set(world.values())) > 1:
        error = disagreement(world)
    result = None
    if error is None:
        result = [current.given[rank] for rank in range(member.size)]
        try:
            if combine is not None:
                result = combine(result)
        except DistributedError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001  # every rank of the group is to see it
            error = DistributedError(
                f"rank {member.ranks[member.rank]} could not combine what the ranks gave in "
                f"{current.headers[member.rank]}: {raised!r}"
            )
            error.__cause__ = raised
    current.end(error, result)


def _again(error: DistributedError) -> DistributedError:
    """Return an error for one thread: a shared one would gather all their tracebacks."""
    rank = (error.rank,) if isinstance(error, RankFailedError) else ()
    own = type(error)(str(error), *rank)
    own.__cause__ = error.__cause__
    return own
