"""`ThreadCommunicator`: ranks that are threads of one process, for notebooks and tests."""

from __future__ import annotations

import weakref
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
from nbrt.distributed.communicators.signatures import CallSignature
from nbrt.distributed.communicators.thread_rendezvous import Member, ThreadWorld
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

    An operation copies the arrays of each rank before it waits, so a rank may change them as soon
    as the operation returns.

    Parameters
    ----------
    world : ThreadWorld
        The state that all ranks share.
    ranks : tuple of int
        The world ranks of the members.
    rank : int
        The number of this rank in the group.
    device : Device or None
        The device of its arrays; None: the current device at each operation.
    timeout : float
        Seconds to wait for the other ranks.
    """

    is_in_process = True

    def __init__(
        self,
        world: ThreadWorld,
        ranks: tuple[int, ...],
        rank: int,
        device: Device | None,
        timeout: float,
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
        self._own_generator: Callable[[], object] = _no_generator

    @property
    def device(self) -> Device:
        """The device of this rank's arrays."""
        return self._device or current_device()

    @property
    def timeout(self) -> float:
        """Seconds to wait for the other ranks."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = check_timeout(seconds)

    def __repr__(self) -> str:
        return f"ThreadCommunicator(rank={self.rank}, size={self.size}, device='{self.device}')"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    # -- misuse by other ranks ---------------------------------------------------------------------

    def check_rank(self, generator: object, is_default: bool = False) -> None:
        """Raise if the running rank may not draw from a generator; see `Communicator`."""
        caller = context.world.get()
        if caller is not None:
            self._check_caller(caller)
        own = self.ranks[self.rank]
        if is_default and caller is None and own in self._world.running:
            raise DistributedError(
                f"expected a thread in the context of rank {own}, whose default generator it would "
                f"draw from, got one without; start it by contextvars.copy_context().run, or pass "
                f"generator="
            )
        if self._own_generator() is generator:
            return
        first = self._world.owner(generator, own)
        if first == own:
            self._own_generator = weakref.ref(generator)
        else:
            raise DistributedError(
                f"expected a generator of rank {own} alone, got {generator!r}, which rank {first} "
                f"uses too; make it in the function that every rank runs, or let each use a clone()"
            )

    def _check_caller(self, caller: object) -> None:
        """Raise if the running thread is another rank of the same world."""
        if caller is self or not isinstance(caller, ThreadCommunicator):
            return
        own = self.ranks[self.rank]
        if caller._world is self._world and caller.rank != own:
            raise DistributedError(
                f"expected rank {own}, which made this mesh or group, got rank {caller.rank}; make "
                f"them in the function that every rank runs"
            )

    # -- operations --------------------------------------------------------------------------------

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return the array of `root`; see `Communicator`."""
        check_array(array)
        check_root(root, self.size)
        signature = CallSignature(
            "broadcast", shape=array.shape, dtype=str(array.dtype), root=int(root)
        )
        given = self._message(array) if root == self.rank else None
        return self._copied(self._meet(signature, given)[root])

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the reduction of all arrays; see `Communicator`."""
        check_array(array)
        check_op(op)
        signature = CallSignature("all_reduce", shape=array.shape, dtype=str(array.dtype), op=op)

        def combine(messages: list[Any]) -> list[Any]:
            total = self._reduced(messages, op)
            current_stream(self.device).synchronize()
            return [total]

        return self._copied(self._meet(signature, self._message(array), combine)[0])

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return the arrays of all ranks; see `Communicator`."""
        check_array(array)
        check_shapes(shapes, self.size)
        self._check_shape(array, shapes)
        same = array.shape if shapes is None else tuple(tuple(shape) for shape in shapes)
        signature = CallSignature("all_gather", shape=same, dtype=str(array.dtype))
        return [self._copied(given) for given in self._meet(signature, self._message(array))]

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of the arrays for this rank; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_op(op)
        shapes = tuple(array.shape for array in arrays)
        signature = CallSignature("reduce_scatter", shape=shapes, dtype=str(arrays[0].dtype), op=op)
        given = [self._message(array) for array in arrays]
        messages = self._meet(signature, given)
        return self._reduced([message[self.rank] for message in messages], op)

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return the arrays that all ranks pass for this rank; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_shapes(shapes, self.size)
        signature = CallSignature("all_to_all", dtype=str(arrays[0].dtype))
        wanted = [tuple(each.shape) for each in arrays] if shapes is None else shapes
        given = ([self._message(array) for array in arrays], [tuple(each) for each in wanted])
        found = self._meet(signature, given, self._exchanged)[self.rank]
        return [self._copied(message) for message in found]

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with the array of `root` for this rank; see `Communicator`."""
        check_array(out)
        check_root(root, self.size)
        messages = None
        if self.rank == root:
            check_arrays(arrays, self.size)
            messages = [self._message(array) for array in arrays or ()]
        signature = CallSignature("scatter", dtype=str(out.dtype), root=int(root))

        def combine(given: list[Any]) -> list[Any]:
            found: list[Array] = given[root][0]
            for rank, (message, (_, shape)) in enumerate(zip(found, given, strict=True)):
                if message.shape != shape or message.dtype != out.dtype:
                    raise RankMismatchError(
                        f"expected an array of {out.dtype} and shape {shape} for rank "
                        f"{self.ranks[rank]} in scatter, got {message.dtype} and {message.shape} "
                        f"from rank {self.ranks[root]}"
                    )
            return found

        message = self._meet(signature, (messages, out.shape), combine)[self.rank]
        copy(out, message, stream=current_stream(self.device))
        return out

    def barrier(self) -> None:
        """Wait for every rank of the group."""
        self._meet(CallSignature("barrier"), None)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return copies of the objects of all ranks; see `Communicator`."""
        given = _copied_object(value)
        return [deepcopy(each) for each in self._meet(CallSignature("all_gather_object"), given)]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return a copy of the object of `root`; see `Communicator`."""
        check_root(root, self.size)
        signature = CallSignature("broadcast_object", root=int(root))
        given = _copied_object(value) if root == self.rank else None
        return deepcopy(self._meet(signature, given)[root])

    def group(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return a group of some of these ranks; see `Communicator`."""
        members = check_members(ranks, self.rank, self.size)
        # All members count their groups alike: the number distinguishes groups of the same ranks.
        number = self._groups[members] = self._groups.get(members, 0) + 1
        world_ranks = tuple(self.ranks[member] for member in members)
        position = members.index(self.rank)
        made = ThreadCommunicator(self._world, world_ranks, position, self._device, self.timeout)
        made._key = (self._key, members, number)
        return made

    def _meet(
        self,
        signature: CallSignature,
        contribution: Any,
        combine: Callable[[list[Any]], list[Any]] | None = None,
    ) -> list[Any]:
        self._check_caller(context.world.get())
        self._count += 1
        member = Member(self.rank, self.ranks, self._timeout)
        return self._world.meet(member, (self._key, self._count), signature, contribution, combine)

    def _check_shape(self, array: Array, shapes: Sequence[tuple[int, ...]] | None) -> None:
        if shapes is not None and tuple(shapes[self.rank]) != array.shape:
            raise ArgumentError(
                f"expected an array of shape {tuple(shapes[self.rank])}, as shapes says of rank "
                f"{self.rank}, got {array.shape}"
            )

    def _exchanged(self, given: list[Any]) -> list[Any]:
        """Return the messages for each rank, and check their shapes."""
        for taker, (_, shapes) in enumerate(given):
            for giver, (messages, _) in enumerate(given):
                if messages[taker].shape != shapes[giver]:
                    raise RankMismatchError(
                        f"rank {self.ranks[taker]} expected an array of shape {shapes[giver]} from "
                        f"rank {self.ranks[giver]} in all_to_all, got {messages[taker].shape}; "
                        f"pass the shapes of the results"
                    )
        return [[messages[taker] for messages, _ in given] for taker in range(self.size)]

    def _message(self, array: Array) -> Array:
        """Return a copy that the other threads may read."""
        check_elements(array.dtype)
        message = self._copied(array)
        current_stream(self.device).synchronize()
        return message

    def _copied(self, array: Array) -> Array:
        """Return a contiguous copy on this rank's device, in order with its current stream."""
        stream = current_stream(self.device)
        if stream.interface.capabilities.host_addressable and isinstance(array, np.ndarray):
            stream.synchronize()
            return np.array(array, order="C")
        result = empty(array.shape, array.dtype, stream=stream)
        copy(result, array, stream=stream)
        return result

    def _reduced(self, messages: list[Array], op: ReduceOp) -> Array:
        stream = current_stream(self.device)
        if stream.interface.capabilities.host_addressable:
            return reduced(messages, op)
        own = [self._copied(message) for message in messages]  # from other devices
        with OptionalStreamGuard(stream):
            return reduced(own, op)


def _no_generator() -> None:
    """Return the generator of the last check, before the first."""


def _copied_object(value: Any) -> Any:
    try:
        return deepcopy(value, MessageMemo())
    except Exception as error:
        raise unsendable(value, error) from error


def thread_world(
    devices: Sequence[Device | None], timeout: float = DEFAULT_TIMEOUT
) -> tuple[ThreadWorld, list[ThreadCommunicator]]:
    """Return a world of a rank for each device, and each rank's communicator.

    Parameters
    ----------
    devices : sequence of Device or None
        The device of each rank's arrays; None: the current device. Ranks may share a device.
    timeout : float
        Seconds that a rank waits for the other ranks.
    """
    seconds = check_timeout(timeout)
    world = ThreadWorld(len(devices))
    ranks = tuple(range(len(devices)))
    return world, [
        ThreadCommunicator(world, ranks, rank, device, seconds)
        for rank, device in enumerate(devices)
    ]
