"""`ThreadCommunicator`: ranks that are threads of one process, for notebooks and tests."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal import rank_context as context
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.checks import (
    MessageMemo,
    check_array,
    check_arrays,
    check_elements,
    check_members,
    check_op,
    check_root,
    check_shapes,
    check_timeout,
    reduced,
    refuse_pickling,
    unsendable,
)
from nbrt.distributed.communicators.signatures import Header
from nbrt.distributed.communicators.thread_rendezvous import World
from nbrt.errors import ArgumentError, DistributedError, RankMismatchError
from nbrt.runtime.array import copy
from nbrt.runtime.creation import empty
from nbrt.runtime.device import current_device
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nbrt._internal.device import Device
    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array

__all__ = ["ThreadCommunicator", "thread_world"]


class ThreadCommunicator:
    """A rank of a group of threads; see `Communicator`.

    What a rank gives is copied when it comes to the operation, so it may be changed as soon as the
    operation returns, whatever the others still do.

    Parameters
    ----------
    world : World
        Where the ranks meet.
    ranks : tuple of int
        The members' numbers in the world.
    rank : int
        This one's number in the group.
    device : Device or None
        Where its arrays live; None: on what is the current device at the time.
    timeout : float
        Seconds to wait for the others.
    """

    def __init__(
        self, world: World, ranks: tuple[int, ...], rank: int, device: Device | None, timeout: float
    ) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self._device = device
        self._timeout = timeout
        self._world = world
        self._count = 0
        self._groups: dict[tuple[int, ...], int] = {}
        self._key: tuple[Any, ...] = (ranks, 0)

    @property
    def device(self) -> Device:
        """Where this rank's arrays live."""
        return self._device or current_device()

    @property
    def timeout(self) -> float:
        """Seconds to wait for the others."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = check_timeout(seconds)

    def __repr__(self) -> str:
        return f"ThreadCommunicator(rank={self.rank}, size={self.size}, device='{self.device}')"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    # -- whose it is -------------------------------------------------------------------------------

    def check_caller(self) -> None:
        """Raise if another rank of the same world is running: it would speak as this one."""
        caller = context.world.get()
        if caller is self or not isinstance(caller, ThreadCommunicator):
            return
        own = self.ranks[self.rank]
        if caller._world is self._world and caller.rank != own:
            raise DistributedError(
                f"expected rank {own}, which made this mesh or group, got rank {caller.rank}; make "
                f"them in the function that every rank runs"
            )

    def check_context(self) -> None:
        """Raise if this rank runs its function, but in another context than the running one."""
        own = self.ranks[self.rank]
        if context.world.get() is None and self._world.is_running(own):
            raise DistributedError(
                f"expected a thread in the context of rank {own}, whose default generator it would "
                f"draw from, got one without; start it by contextvars.copy_context().run, or pass "
                f"generator="
            )

    def check_own(self, thing: object) -> None:
        """Raise if another rank of the world was here with the same thing before."""
        own = self.ranks[self.rank]
        first = self._world.owner(thing, own)
        if first != own:
            raise DistributedError(
                f"expected something of rank {own} alone, got {thing!r}, which rank {first} uses "
                f"too; make it in the function that every rank runs, or let each use a clone()"
            )

    # -- operations --------------------------------------------------------------------------------

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return what `root` gave; see `Communicator`."""
        check_array(array)
        check_root(root, self.size)
        header = Header("broadcast", shape=array.shape, dtype=str(array.dtype), root=int(root))
        given = self._parcel(array) if root == self.rank else None
        return self._copied(self._meet(header, given)[root])

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all gave; see `Communicator`."""
        check_array(array)
        check_op(op)
        header = Header("all_reduce", shape=array.shape, dtype=str(array.dtype), op=op)

        def combine(parcels: list[Any]) -> list[Any]:
            total = self._reduced(parcels, op)
            current_stream(self.device).synchronize()
            return [total]

        return self._copied(self._meet(header, self._parcel(array), combine)[0])

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave; see `Communicator`."""
        check_array(array)
        check_shapes(shapes, self.size)
        self._check_shape(array, shapes)
        same = array.shape if shapes is None else tuple(tuple(shape) for shape in shapes)
        header = Header("all_gather", shape=same, dtype=str(array.dtype))
        return [self._copied(given) for given in self._meet(header, self._parcel(array))]

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all gave for this rank; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_op(op)
        shapes = tuple(array.shape for array in arrays)
        header = Header("reduce_scatter", shape=shapes, dtype=str(arrays[0].dtype), op=op)
        given = [self._parcel(array) for array in arrays]
        parcels = self._meet(header, given)
        return self._reduced([parcel[self.rank] for parcel in parcels], op)

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave for this one; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_shapes(shapes, self.size)
        header = Header("all_to_all", dtype=str(arrays[0].dtype))
        wanted = [tuple(each.shape) for each in arrays] if shapes is None else shapes
        given = ([self._parcel(array) for array in arrays], [tuple(each) for each in wanted])
        found = self._meet(header, given, self._exchanged)[self.rank]
        return [self._copied(parcel) for parcel in found]

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with what `root` gave for this rank; see `Communicator`."""
        check_array(out)
        check_root(root, self.size)
        parcels = None
        if self.rank == root:
            check_arrays(arrays, self.size)
            parcels = [self._parcel(array) for array in arrays or ()]
        header = Header("scatter", dtype=str(out.dtype), root=int(root))

        def combine(given: list[Any]) -> list[Any]:
            found: list[Array] = given[root][0]
            for rank, (parcel, (_, shape)) in enumerate(zip(found, given, strict=True)):
                if parcel.shape != shape or parcel.dtype != out.dtype:
                    raise RankMismatchError(
                        f"expected an array of {out.dtype} and shape {shape} for rank "
                        f"{self.ranks[rank]} in scatter, got {parcel.dtype} and {parcel.shape} "
                        f"from rank {self.ranks[root]}"
                    )
            return found

        parcel = self._meet(header, (parcels, out.shape), combine)[self.rank]
        copy(out, parcel, stream=current_stream(self.device))
        return out

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self._meet(Header("barrier"), None)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return what each rank gave, copied; see `Communicator`."""
        given = _copied_object(value)
        return [deepcopy(each) for each in self._meet(Header("all_gather_object"), given)]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object that `root` gave, copied; see `Communicator`."""
        check_root(root, self.size)
        header = Header("broadcast_object", root=int(root))
        given = _copied_object(value) if root == self.rank else None
        return deepcopy(self._meet(header, given)[root])

    def group(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return a group of some of these ranks; see `Communicator`."""
        members = check_members(ranks, self.rank, self.size)
        # Its members count their groups alike, so the number tells groups of the same ranks apart.
        number = self._groups[members] = self._groups.get(members, 0) + 1
        world_ranks = tuple(self.ranks[member] for member in members)
        position = members.index(self.rank)
        made = ThreadCommunicator(self._world, world_ranks, position, self._device, self.timeout)
        made._key = (self._key, members, number)
        return made

    # -- how ---------------------------------------------------------------------------------------

    def _meet(
        self,
        header: Header,
        given: Any,
        combine: Callable[[list[Any]], list[Any]] | None = None,
    ) -> list[Any]:
        self.check_caller()
        self._count += 1
        return self._world.meet(self, (self._key, self._count), header, given, combine)

    def _check_shape(self, array: Array, shapes: Sequence[tuple[int, ...]] | None) -> None:
        if shapes is not None and tuple(shapes[self.rank]) != array.shape:
            raise ArgumentError(
                f"expected an array of shape {tuple(shapes[self.rank])}, as shapes says of rank "
                f"{self.rank}, got {array.shape}"
            )

    def _exchanged(self, given: list[Any]) -> list[Any]:
        """Return, for each rank, what comes to it, if that is what it expects."""
        for taker, (_, shapes) in enumerate(given):
            for giver, (parcels, _) in enumerate(given):
                if parcels[taker].shape != shapes[giver]:
                    raise RankMismatchError(
                        f"rank {self.ranks[taker]} expected an array of shape {shapes[giver]} from "
                        f"rank {self.ranks[giver]} in all_to_all, got {parcels[taker].shape}; pass "
                        f"the shapes of what comes"
                    )
        return [[parcels[taker] for parcels, _ in given] for taker in range(self.size)]

    def _parcel(self, array: Array) -> Array:
        """Return a copy that the other threads may read, whatever happens to the array."""
        check_elements(array.dtype)
        parcel = self._copied(array)
        current_stream(self.device).synchronize()
        return parcel

    def _copied(self, array: Array) -> Array:
        """Return a contiguous copy on this rank's device, in order with its current stream."""
        stream = current_stream(self.device)
        if stream.interface.capabilities.host_addressable and isinstance(array, np.ndarray):
            stream.synchronize()
            return np.array(array, order="C")
        result = empty(array.shape, array.dtype, stream=stream)
        copy(result, array, stream=stream)
        return result

    def _reduced(self, parcels: list[Array], op: ReduceOp) -> Array:
        stream = current_stream(self.device)
        if stream.interface.capabilities.host_addressable:
            return reduced(parcels, op)
        own = [self._copied(parcel) for parcel in parcels]  # they may be on other devices
        with OptionalStreamGuard(stream):
            return reduced(own, op)


def _copied_object(value: Any) -> Any:
    try:
        return deepcopy(value, MessageMemo())
    except Exception as error:
        raise unsendable(value, error) from error


def thread_world(
    devices: Sequence[Device | None], timeout: float = DEFAULT_TIMEOUT
) -> tuple[World, list[ThreadCommunicator]]:
    """Return a world of a rank for each device, and each rank's communicator.

    Parameters
    ----------
    devices : sequence of Device or None
        Where each rank's arrays live, None: on the current device; one may come more than once.
    timeout : float
        Seconds that a rank waits for the others.
    """
    seconds = check_timeout(timeout)
    world = World(len(devices))
    ranks = tuple(range(len(devices)))
    return world, [
        ThreadCommunicator(world, ranks, rank, device, seconds)
        for rank, device in enumerate(devices)
    ]
