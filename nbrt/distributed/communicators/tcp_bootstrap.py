"""`TcpBootstrap`: connects ranks through a key-value store that rank 0 serves over TCP."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt._internal import clock
from nbrt.distributed.communicators.checks import check_members, check_timeout
from nbrt.errors import ArgumentError, CollectiveTimeoutError, RankMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.transport import Store

__all__ = ["RankAssignment", "TcpBootstrap", "find_rank_assignment", "polls"]

_WORLD = "world"
_SHORT = 5e-5
"""Seconds between the first two polls of a wait."""


class RankAssignment(NamedTuple):
    """The rank of a process, the number of ranks, and the address of the store.

    `local_rank` is its number among the ranks of its machine, if the launcher gives it.
    """

    rank: int
    size: int
    host: str
    port: int
    local_rank: int


class TcpBootstrap:
    """A rank of a group that shares the first bytes of a transport through a store.

    `address` is for messages; `key` is the key of the group, unique in the store.
    """

    def __init__(
        self,
        store: Store,
        address: str,
        ranks: tuple[int, ...],
        rank: int,
        timeout: float,
        key: str = _WORLD,
    ) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self.timeout = timeout
        self._store = store
        self._address = address
        self._key = key
        self._groups: dict[tuple[int, ...], int] = {}

    @classmethod
    def open(
        cls, interface: DeviceInterface, assignment: RankAssignment, timeout: float
    ) -> TcpBootstrap:
        """Return the bootstrap of the world; rank 0 starts the store."""
        seconds = check_timeout(timeout)
        store = interface.open_store(assignment.host, assignment.port, assignment.rank == 0)
        ranks = tuple(range(assignment.size))
        return cls(store, f"{assignment.host}:{assignment.port}", ranks, assignment.rank, seconds)

    def share(self, value: Any) -> Any:
        """Return the value of rank 0 after all members have connected; called once.

        Raises
        ------
        CollectiveTimeoutError
            If ranks or the store do not respond within the timeout.
        RankMismatchError
            If ranks differ in the number of ranks.
        """
        if self.rank == 0:
            came = self._collect(self._key)
            for rank, said in came.items():
                token, _, size = said.decode().partition(" ")
                if int(size) != self.size:
                    raise RankMismatchError(
                        f"expected the same world_size on every rank, got {self.size} on rank 0 "
                        f"and {size} on rank {self.ranks[rank]}"
                    )
                self._store.set(token, value)
            return value
        # The key of the answer is random, and each poll repeats the request, so a store that an
        # earlier world left at the same address gives no wrong answer.
        token, problem = secrets.token_hex(8), None
        for _ in polls(self.timeout):
            try:
                self._store.set(f"{self._key}/{self.rank}", f"{token} {self.size}".encode())
                answer, problem = self._store.get(token), None
            except OSError as error:
                answer, problem = None, error
            if answer is not None:
                return answer
        raise self._late(problem, "rank 0 of the group does not answer")

    def group(self, ranks: Sequence[int]) -> TcpBootstrap:
        """Return the bootstrap of some of these ranks."""
        members = check_members(ranks, self.rank, self.size)
        number = self._groups[members] = self._groups.get(members, 0) + 1
        # Keys and values share the 256 bytes of a message, so a key is a digest.
        said = f"{self._key} {members} {number}".encode()
        return TcpBootstrap(
            self._store,
            self._address,
            tuple(self.ranks[member] for member in members),
            members.index(self.rank),
            self.timeout,
            hashlib.blake2b(said, digest_size=16).hexdigest(),
        )

    def close(self) -> None:
        """Leave the world; rank 0 serves the store until all ranks have left."""
        if self._key != _WORLD:
            return
        try:
            if self.rank == 0:
                self._collect("end")
            else:
                with contextlib.suppress(OSError):  # rank 0 has ended already
                    self._store.set(f"end/{self.rank}", b"")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the world without notice to other ranks."""
        if self._key == _WORLD:
            self._store.close()

    def _collect(self, key: str) -> dict[int, bytes]:
        """Return the values of the other ranks under a key."""
        came: dict[int, bytes] = {}
        problem: OSError | None = None
        for _ in polls(self.timeout):
            try:
                for rank in range(1, self.size):
                    said = None if rank in came else self._store.get(f"{key}/{rank}")
                    if said is not None:
                        came[rank] = said
                problem = None
            except OSError as error:
                problem = error
            if len(came) == self.size - 1:
                return came
        missing = [self.ranks[rank] for rank in range(1, self.size) if rank not in came]
        raise self._late(problem, f"missing: {missing}")

    def _late(self, problem: OSError | None, found: str) -> CollectiveTimeoutError:
        if problem is not None:
            found = f"the store cannot be reached ({problem}); is rank 0 there, and its address?"
        error = CollectiveTimeoutError(
            f"expected ranks {list(self.ranks)} at {self._address} within {self.timeout:g} s, "
            f"where rank {self.ranks[self.rank]} waits; {found}"
        )
        error.__cause__ = problem
        return error


def find_rank_assignment(
    rank: int | None, world_size: int | None, address: str | None
) -> RankAssignment | None:
    """Return the rank of the arguments, or of the environment for missing arguments.

    The variables are those of torchrun: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, LOCAL_RANK.
    The result is None without arguments and without the first two variables.
    """
    given = (rank, world_size, address) != (None, None, None)
    if not given and not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return None
    number = _whole("rank", rank, "RANK")
    size = _whole("world_size", world_size, "WORLD_SIZE")
    if not number < size:
        raise ArgumentError(f"expected rank in [0, {size}), as world_size says, got {number}")
    host, port = _address(address)
    local_rank = _whole("LOCAL_RANK", os.environ.get("LOCAL_RANK", number))
    return RankAssignment(number, size, host, port, local_rank)


def polls(seconds: float, longest: float = 1.0) -> Iterator[None]:
    """Yield once, and again after pauses of growing length, until the time is over."""
    deadline, pause = clock.monotonic() + seconds, _SHORT
    yield
    while (left := deadline - clock.monotonic()) > 0:
        clock.sleep(min(pause, left))
        pause = min(2 * pause, longest)
        yield


def _whole(name: str, value: object, variable: str = "") -> int:
    if value is None:
        value = os.environ.get(variable)
    if value is None:
        raise ArgumentError(f"expected {name}, got none; pass {name}=, or set {variable}")
    if not str(value).isdecimal():
        raise ArgumentError(f"expected {name} as a whole number from 0, got {value!r}")
    return int(str(value))


def _address(address: str | None) -> tuple[str, int]:
    is_shared = False
    if address is None:
        names = "MASTER_ADDR", "MASTER_PORT"
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise ArgumentError(
                f"expected address, got none; pass address='host:port' of rank 0, or set "
                f"{' and '.join(missing)}"
            )
        address = ":".join(os.environ[name] for name in names)
        # torchrun serves its own store at this port; nbrt uses the next one.
        is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, _, port = str(address).rpartition(":")
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) + is_shared < 65536:
        raise ArgumentError(
            f"expected address as 'host:port', a name or IPv4 address of rank 0's machine and a "
            f"free port of it, got {address!r}"
        )
    return host, int(port) + is_shared
