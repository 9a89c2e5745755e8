"""`NcclCommunicator`: ranks that each have a GPU, whose memory NCCL moves."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt import config
from nbrt._internal.device import Device
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.checks import (
    check_root,
    check_timeout,
)
from nbrt.distributed.communicators.packing import MessagePacker
from nbrt.distributed.communicators.signatures import CallSignature, mismatch_error
from nbrt.distributed.communicators.tcp_bootstrap import (
    RankAssignment,
    TcpBootstrap,
    find_rank_assignment,
    polls,
)
from nbrt.distributed.communicators.transported import TransportCollectives
from nbrt.errors import ArgumentError, CollectiveTimeoutError
from nbrt.runtime.array import to, to_host
from nbrt.runtime.device import device_count, resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.communicators.base import Communicator
    from nbrt.typing import Array, DeviceLike, HostArray

__all__ = ["NcclCommunicator"]

_LONGEST_PAUSE = 1e-3
"""Seconds between two polls for objects."""


class NcclCommunicator(TransportCollectives):
    """A rank whose device has a transport, such as a GPU with NCCL; see `Communicator`.

    Ranks that MPI did not start connect over TCP at the address of rank 0: that of `rank`,
    `world_size` and `address`, or of the variables that torchrun sets (RANK, WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT, and LOCAL_RANK for the device). torchrun itself listens at
    MASTER_PORT; its ranks use the port after it. The store there is CuPy's, for trusted networks,
    and lasts until all ranks have closed.

    Operations on arrays are enqueued on the current stream and do not wait for the other ranks.
    Objects, barriers and new groups go over MPI, if ranks have it. Otherwise objects are arrays of
    bytes for NCCL, and a rank that waits longer than `timeout` aborts the NCCL communicator. With
    ``NBRT_DISTRIBUTED_CHECK`` the ranks synchronise before each operation, and errors name missing
    and differing ranks, and over MPI failed ranks.

    Parameters
    ----------
    bootstrap : Communicator, optional
        A communicator of the same ranks in host memory, such as threads or `MpiCommunicator`. The
        latter is the default if neither arguments nor environment give the rank.
    device : Device, str, int or None
        The device of this rank's arrays; by default the GPU with the rank's number (on the machine,
        if LOCAL_RANK is set), modulo the number of GPUs of the machine. Ranks need different GPUs.
    timeout : float
        Seconds to wait for the other ranks, without a `bootstrap`.
    rank, world_size : int, optional
        The number of this rank, and the number of ranks.
    address : str, optional
        ``"host:port"``: a name or IPv4 address of rank 0's machine, and a free port of it.

    Raises
    ------
    ArgumentError
        If rank, world size or address are wrong, or some are known and others are not.
    BackendUnavailableError
        If NCCL, or the MPI that is to start it, is missing.
    CollectiveTimeoutError
        If ranks did not meet within the timeout.
    DistributedError
        If rank 0 cannot listen at the address, or NCCL cannot connect the ranks.
    NotSupportedError
        If devices of the type have no transport.
    """

    def __init__(
        self,
        bootstrap: Communicator | TcpBootstrap | None = None,
        device: DeviceLike = None,
        timeout: float = DEFAULT_TIMEOUT,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        address: str | None = None,
    ) -> None:
        source = _source(bootstrap, timeout, rank, world_size, address)
        if device is None:
            local_rank = source.local_rank if isinstance(source, RankAssignment) else source.rank
            device = Device("cuda", local_rank % max(1, device_count("cuda")))
        self.device = resolve_device(device)
        self._packer = MessagePacker(self.device)
        interface = current_stream(self.device).interface
        if isinstance(source, RankAssignment):
            source = TcpBootstrap.open(interface, source, timeout)
        self._bootstrap = source
        self.rank = source.rank
        self.size = source.size
        self.ranks = source.ranks
        # The communicator of objects: MPI or threads; None: the transport itself.
        self._host = None if isinstance(source, TcpBootstrap) else source
        share = source.share if isinstance(source, TcpBootstrap) else source.broadcast_object
        try:
            self._transport = interface.connect_ranks(
                self.device.index, self.rank, self.size, share
            )
        except BaseException:
            if isinstance(source, TcpBootstrap):
                source.abandon()
            raise

    @property
    def timeout(self) -> float:
        """Seconds to wait for the other ranks."""
        return self._bootstrap.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._bootstrap.timeout = check_timeout(seconds)

    # -- operations --------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait for every rank of the group, but not for work on streams."""
        if self._host is None:
            self._gather_lengths(0)
        else:
            self._host.barrier()

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, pickled; see `Communicator`."""
        if self._host is not None:
            return self._host.all_gather_object(value)
        data = self._as_bytes(value)
        shapes = [(length,) for length in self._gather_lengths(data.nbytes)]
        found = self._exchange([data] * self.size, shapes)
        return [pickle.loads(self._read(each).tobytes()) for each in found]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object of `root`, pickled; see `Communicator`."""
        if self._host is not None:
            return self._host.broadcast_object(value, root)
        check_root(root, self.size)
        data = self._as_bytes(value) if self.rank == root else self._packer.new(0)
        length = self._gather_lengths(data.nbytes)[root]
        buffer = data if self.rank == root else self._packer.new(length)
        self._enqueue(self._transport.broadcast, buffer, int(root))
        return pickle.loads(self._read(buffer).tobytes())

    def group(self, ranks: Sequence[int]) -> NcclCommunicator:
        """Return a group of some of these ranks; see `Communicator`."""
        return NcclCommunicator(self._bootstrap.group(ranks), self.device)

    def close(self) -> None:
        """Wait for the stream, and free the group; every member calls it."""
        current_stream(self.device).synchronize()
        self._transport.close()
        close = getattr(self._bootstrap, "close", None)
        if close is not None:
            close()

    def _enter(self, signature: CallSignature) -> None:
        """Start an operation; with checks enabled, raise if ranks are in different operations."""
        if config.settings().distributed_check:
            signatures = self.all_gather_object(signature)
            if any(each != signature for each in signatures):
                raise mismatch_error(dict(zip(self.ranks, signatures, strict=True)))

    def _as_bytes(self, value: Any) -> Array:
        return to(np.frombuffer(bytearray(pickle.dumps(value)), np.uint8), self.device)

    def _gather_lengths(self, length: int) -> list[int]:
        """Return the lengths of all ranks."""
        mine = to(np.array([length], np.int64), self.device)
        buffer = self._packer.new(self.size * mine.nbytes)
        self._enqueue(self._transport.all_gather, self._packer.pack([mine]), buffer)
        lengths: list[int] = self._read(buffer).view(np.int64).tolist()
        return lengths

    def _read(self, buffer: Array) -> HostArray:
        """Return a filled buffer in host memory, within the timeout, which NCCL itself lacks."""
        event = current_stream(self.device).record_event()
        for _ in polls(self.timeout, _LONGEST_PAUSE):
            if event.query():
                return to_host(buffer, stream=current_stream(self.device))
        self._transport.abort()
        raise CollectiveTimeoutError(
            f"expected ranks {list(self.ranks)} within {self.timeout:g} s, where rank "
            f"{self.ranks[self.rank]} waits; NCCL does not say who is missing. Its communicator is "
            f"aborted: call destroy_process_group and init_process_group, or end the program"
        )


def _source(
    bootstrap: Communicator | TcpBootstrap | None,
    timeout: float,
    rank: int | None,
    world_size: int | None,
    address: str | None,
) -> Communicator | TcpBootstrap | RankAssignment:
    """Return the source of ranks: a bootstrap, or the assignment of this rank."""
    if bootstrap is not None:
        if (rank, world_size, address) != (None, None, None):
            raise ArgumentError(
                "expected a bootstrap, or rank, world_size and address, got both; the bootstrap "
                "knows them"
            )
        return bootstrap
    assignment = find_rank_assignment(rank, world_size, address)
    if assignment is not None:
        return assignment
    from nbrt.distributed.communicators.mpi import MpiCommunicator

    return MpiCommunicator(device=Device("cpu", 0), timeout=timeout)
