"""`ThreadCommunicator`: ranks that are threads of one process, for notebooks and tests."""

from __future__ import annotations

import weakref
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal import rank_context as context
from nbrt.distributed.communicators.adapter import Adapter
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.checks import (
    MessageMemo,
    check_members,
    check_root,
    check_timeout,
    reduced,
    unsendable,
)
from nbrt.distributed.communicators.fake import FakeCollectives, computes
from nbrt.distributed.communicators.signatures import CallSignature
from nbrt.distributed.communicators.thread_rendezvous import Member, ThreadWorld
from nbrt.errors import DistributedError, RankMismatchError
from nbrt.runtime.array import copy
from nbrt.runtime.creation import empty
from nbrt.runtime.device import current_device
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt._internal.device import Device
    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array

__all__ = ["ThreadCommunicator", "thread_world"]


class ThreadCommunicator(Adapter):
    """A rank of a group of threads; see `Communicator`.

    An operation copies the arrays of each rank before it waits, so a rank may change them as soon
    as the operation returns.

    A device of None is the current device at each operation.
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

    def _broadcast(self, array: Array, root: int, signature: CallSignature) -> Array:
        if not computes(self.device):
            self._meet(signature, None)
            return self._fake()._broadcast(array, root, signature)
        sent = self._message(array) if root == self.rank else None
        return self._copied(self._meet(signature, sent)[root])

    def _all_reduce(self, array: Array, op: ReduceOp, signature: CallSignature) -> Array:
        if not computes(self.device):
            self._meet(signature, None)
            return self._fake()._all_reduce(array, op, signature)

        def combine(messages: list[Any]) -> list[Any]:
            total = self._reduced(messages, op)
            current_stream(self.device).synchronize()
            return [total]

        return self._copied(self._meet(signature, self._message(array), combine)[0])

    def _all_gather(
        self,
        array: Array,
        shapes: list[tuple[int, ...]],
        signature: CallSignature,
    ) -> list[Array]:
        if not computes(self.device):
            self._meet(signature, None)
            return self._fake()._all_gather(array, shapes, signature)
        messages = self._meet(signature, self._message(array))
        return [self._copied(message) for message in messages]

    def _reduce_scatter(
        self, arrays: Sequence[Array], op: ReduceOp, signature: CallSignature
    ) -> Array:
        if not computes(self.device):
            self._meet(signature, None)
            return self._fake()._reduce_scatter(arrays, op, signature)
        messages = self._meet(signature, [self._message(array) for array in arrays])
        return self._reduced([message[self.rank] for message in messages], op)

    def _all_to_all(
        self, arrays: Sequence[Array], shapes: list[tuple[int, ...]], signature: CallSignature
    ) -> list[Array]:
        if not computes(self.device):
            self._meet(signature, (arrays, shapes), self._exchanged)
            return self._fake()._all_to_all(arrays, shapes, signature)
        sent = [self._message(array) for array in arrays], shapes
        received = self._meet(signature, sent, self._exchanged)[self.rank]
        return [self._copied(message) for message in received]

    def _scatter(
        self, arrays: Sequence[Array], out: Array, root: int, signature: CallSignature
    ) -> Array:
        is_real = computes(self.device)
        messages = [self._message(array) for array in arrays] if is_real else arrays

        def combine(given: list[Any]) -> list[Any]:
            sent: list[Array] = given[root][0]
            for rank, (message, (_, shape)) in enumerate(zip(sent, given, strict=True)):
                if message.shape != shape or message.dtype != out.dtype:
                    raise RankMismatchError(
                        f"expected an array of {out.dtype} and shape {shape} for rank "
                        f"{self.ranks[rank]} in scatter, got {message.dtype} and {message.shape} "
                        f"from rank {self.ranks[root]}"
                    )
            return sent

        message = self._meet(signature, (messages, out.shape), combine)[self.rank]
        if not is_real:
            return self._fake()._scatter(arrays, out, root, signature)
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

    def _fake(self) -> FakeCollectives:
        """Return the operations of this rank without values, behind the meeting of the ranks."""
        return FakeCollectives(self.device, self.rank, self.ranks)

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

    A device of None is the current device. Ranks may share a device.
    """
    seconds = check_timeout(timeout)
    world = ThreadWorld(len(devices))
    ranks = tuple(range(len(devices)))
    return world, [
        ThreadCommunicator(world, ranks, rank, device, seconds)
        for rank, device in enumerate(devices)
    ]
