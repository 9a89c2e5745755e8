"""Collectives of fake devices: memory and commands as on real ones, and no values."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.communicators.checks import check_members, check_root, check_timeout
from nbrt.distributed.communicators.packing import MessagePacker
from nbrt.distributed.communicators.transported import TransportCollectives
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.device import Device
    from nbrt.typing import Array

__all__ = ["FakeCollectives", "FakeCommunicator", "computes"]


def computes(device: Device) -> bool:
    """Return whether arrays of a device have values that a collective moves."""
    return current_stream(device).interface.capabilities.computes


class FakeCollectives(TransportCollectives):
    """The operations on arrays of one rank on a fake device, without the other ranks.

    Buffers are those of `NcclCommunicator`, in device memory. On CPU devices they are ordinary
    host memory, as ranks that are threads use it.

    Parameters
    ----------
    device : Device
        The device of this rank's arrays.
    rank : int
        The number of this rank in the group.
    ranks : tuple of int
        The world ranks of the members.
    """

    def __init__(self, device: Device, rank: int, ranks: tuple[int, ...]) -> None:
        self.device = device
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self._packer = _FakePacker(device)
        interface = current_stream(device).interface
        self._transport = interface.connect_ranks(device.index, rank, self.size, _same)


class _FakePacker(MessagePacker):
    def new(self, nbytes: int) -> Array:
        if self.is_host:
            interface = current_stream(self.device).interface
            return interface.empty_host((nbytes,), np.dtype(np.uint8))
        return super().new(nbytes)

    def _check_devices(self, arrays: Sequence[Array]) -> None:
        """Do nothing: ranks that are threads take arrays of any device."""


class FakeCommunicator(FakeCollectives):
    """One rank of a world whose other ranks do not exist; see `Communicator`.

    Every other rank is taken to pass the same Python objects as this one, and arrays of the shapes
    that the operations expect.

    Parameters
    ----------
    device, rank, ranks
        As of `FakeCollectives`.
    timeout : float
        Has no effect: the rank waits for none.
    """

    is_in_process = False

    def __init__(self, device: Device, rank: int, ranks: tuple[int, ...], timeout: float) -> None:
        super().__init__(device, rank, ranks)
        self._timeout = check_timeout(timeout)

    def barrier(self) -> None:
        """Do nothing: there is no other rank."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return copies of the object, one for each rank."""
        return [deepcopy(value) for _ in self.ranks]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return a copy of the object, whichever rank is the root."""
        check_root(root, self.size)
        return deepcopy(value)

    def group(self, ranks: Sequence[int]) -> FakeCommunicator:
        """Return a group of some of these ranks."""
        members = check_members(ranks, self.rank, self.size)
        chosen = tuple(self.ranks[member] for member in members)
        return FakeCommunicator(self.device, members.index(self.rank), chosen, self.timeout)


def _same(value: Any) -> Any:
    return value
