"""`NcclCommunicator`: ranks that each have a GPU, whose memory NCCL moves."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt import config
from nbrt._internal.device import Device
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.checks import (
    check_array,
    check_arrays,
    check_elements,
    check_op,
    check_root,
    check_shapes,
    check_timeout,
)
from nbrt.distributed.communicators.packing import Packer, counts_of
from nbrt.distributed.communicators.signatures import CallSignature, mismatch_error
from nbrt.distributed.communicators.tcp_bootstrap import (
    RankAssignment,
    Rendezvous,
    find_rank_assignment,
    polls,
)
from nbrt.errors import ArgumentError, ArgumentTypeError, CollectiveTimeoutError
from nbrt.runtime.array import copy, to, to_host
from nbrt.runtime.device import device_count, resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.communicators.base import Communicator, ReduceOp
    from nbrt.typing import Array, DeviceLike, HostArray

__all__ = ["NcclCommunicator"]

_LONGEST_PAUSE = 1e-3
"""Seconds between two looks whether objects have come."""


class NcclCommunicator:
    """A rank with a device that has its own transport, such as a GPU with NCCL; see `Communicator`.

    Ranks are started by MPI, or by anything else: then they meet over TCP at the address of rank 0,
    as `rank`, `world_size` and `address` say, or the variables that torchrun sets (RANK,
    WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK for the device). torchrun itself listens
    at MASTER_PORT; its ranks meet at the port after it. The store there is CuPy's, for networks
    whose members are trusted, and lasts until all ranks have closed.

    Operations on arrays are enqueued on the current stream and do not wait for the other ranks.
    Objects, barriers and the making of groups go over MPI, if ranks have it. Else objects are
    arrays of bytes for NCCL, and who waits for `timeout` aborts NCCL's communicator. With
    ``NBRT_DISTRIBUTED_CHECK`` the ranks meet before each operation, and are told of missing and
    differing ones, and over MPI of failed ones.

    Parameters
    ----------
    bootstrap : Communicator, optional
        Of the same ranks, in host memory, such as threads or `MpiCommunicator`; the latter is the
        default where neither arguments nor environment say who this rank is.
    device : Device, str, int or None
        Where this rank's arrays live; by default the GPU with the rank's number (on the machine, if
        LOCAL_RANK is set), modulo the number of GPUs of the machine. Every rank needs another one.
    timeout : float
        Seconds to wait for the others, without a `bootstrap`.
    rank, world_size : int, optional
        This rank's number, and how many there are.
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
        If the kind of device has no transport of its own.
    """

    is_in_process = False

    def __init__(
        self,
        bootstrap: Communicator | Rendezvous | None = None,
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
        self._packer = Packer(self.device)
        interface = current_stream(self.device).interface
        if isinstance(source, RankAssignment):
            source = Rendezvous.open(interface, source, timeout)
        self._bootstrap = source
        self.rank = source.rank
        self.size = source.size
        self.ranks = source.ranks
        # Who carries objects: MPI or threads; None: the transport itself.
        self._host = None if isinstance(source, Rendezvous) else source
        share = source.share if isinstance(source, Rendezvous) else source.broadcast_object
        try:
            self._transport = interface.connect_ranks(
                self.device.index, self.rank, self.size, share
            )
        except BaseException:
            if isinstance(source, Rendezvous):
                source.abandon()
            raise

    @property
    def timeout(self) -> float:
        """Seconds to wait for the others, where ranks meet."""
        return self._bootstrap.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._bootstrap.timeout = check_timeout(seconds)

    def __repr__(self) -> str:
        return f"NcclCommunicator(rank={self.rank}, size={self.size}, device='{self.device}')"

    def check_rank(self, generator: object, is_default: bool = False) -> None:
        """Do nothing: a process is one rank; see `Communicator`."""

    # -- operations --------------------------------------------------------------------------------

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return what `root` gave; see `Communicator`."""
        check_array(array)
        check_root(root, self.size)
        self._enter("broadcast", array.dtype, array.shape, root=int(root))
        is_root = self.rank == root
        buffer = self._packer.pack([array], True) if is_root else self._packer.new(array.nbytes)
        self._enqueue(self._transport.broadcast, buffer, int(root))
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all gave; see `Communicator`."""
        check_array(array)
        check_op(op)
        self._enter("all_reduce", array.dtype, array.shape, op=op)
        if not self._transport.reduces(array.dtype, op):
            return self._packer.reduce(self._gather(array), op)
        buffer = self._packer.new(array.nbytes)
        outgoing = self._packer.pack([array])
        self._enqueue(self._transport.all_reduce, outgoing, buffer, array.dtype, op)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave; see `Communicator`."""
        check_array(array)
        check_shapes(shapes, self.size)
        if shapes is None:
            self._enter("all_gather", array.dtype, array.shape)
            return self._gather(array)
        every = [tuple(shape) for shape in shapes]
        if every[self.rank] != array.shape:
            raise ArgumentTypeError(
                f"expected an array of shape {every[self.rank]}, as shapes says of rank "
                f"{self.rank}, got {array.shape}"
            )
        self._enter("all_gather", array.dtype, tuple(every))
        return self._exchange([array] * self.size, every)

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all gave for this rank; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_op(op)
        shapes, dtype = [array.shape for array in arrays], arrays[0].dtype
        self._enter("reduce_scatter", dtype, tuple(shapes), op=op)
        mine = shapes[self.rank]
        if len(set(shapes)) > 1 or not self._transport.reduces(dtype, op):
            return self._packer.reduce(self._exchange(arrays, [mine] * self.size), op)
        buffer = self._packer.new(arrays[0].nbytes)
        outgoing = self._packer.pack(arrays)
        self._enqueue(self._transport.reduce_scatter, outgoing, buffer, dtype, op)
        return self._packer.unpack(buffer, [mine], dtype)[0]

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave for this one; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_shapes(shapes, self.size)
        self._enter("all_to_all", arrays[0].dtype)
        wanted = [array.shape for array in arrays] if shapes is None else shapes
        return self._exchange(arrays, [tuple(shape) for shape in wanted])

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with what `root` gave for this rank; see `Communicator`."""
        check_array(out)
        check_root(root, self.size)
        given: Sequence[Array] = ()
        if self.rank == root:
            check_arrays(arrays, self.size)
            given = arrays or ()
        self._enter("scatter", out.dtype, root=int(root))
        outgoing = {rank: self._packer.pack([array]) for rank, array in enumerate(given)}
        buffer = self._packer.new(out.nbytes)
        self._enqueue(self._transport.exchange, outgoing, {int(root): buffer})
        found = self._packer.unpack(buffer, [out.shape], out.dtype)[0]
        copy(out, found, stream=current_stream(self.device))
        return out

    def barrier(self) -> None:
        """Wait until every rank has come here; says nothing of work on streams."""
        if self._host is None:
            self._gather_lengths(0)
        else:
            self._host.barrier()

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return what each rank gave, pickled; see `Communicator`."""
        if self._host is not None:
            return self._host.all_gather_object(value)
        data = self._as_bytes(value)
        shapes = [(length,) for length in self._gather_lengths(data.nbytes)]
        found = self._exchange([data] * self.size, shapes)
        return [pickle.loads(self._read(each).tobytes()) for each in found]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object that `root` gave, pickled; see `Communicator`."""
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
        """Wait for the stream's work, and give the group back; every member calls it."""
        current_stream(self.device).synchronize()
        self._transport.close()
        close = getattr(self._bootstrap, "close", None)
        if close is not None:
            close()

    # -- how ---------------------------------------------------------------------------------------

    def _enter(self, operation: str, dtype: Any, shape: Any = None, **said: Any) -> None:
        """Begin an operation; in checks, raise unless all ranks came to it."""
        check_elements(dtype)
        if config.settings().distributed_check:
            header = CallSignature(operation, shape=shape, dtype=str(dtype), **said)
            headers = self.all_gather_object(header)
            if any(each != header for each in headers):
                raise mismatch_error(dict(zip(self.ranks, headers, strict=True)))

    def _enqueue(self, function: Callable[..., None], *args: Any) -> None:
        stream = current_stream(self.device)
        stream.enqueue("collective", function, args, function.__name__)

    def _gather(self, array: Array) -> list[Array]:
        buffer = self._packer.new(self.size * array.nbytes)
        self._enqueue(self._transport.all_gather, self._packer.pack([array]), buffer)
        return self._packer.unpack(buffer, [array.shape] * self.size, array.dtype)

    def _exchange(self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        dtype = arrays[0].dtype
        counts = counts_of(shapes, dtype)
        buffers = [self._packer.new(count) for count in counts]
        outgoing = {rank: self._packer.pack([array]) for rank, array in enumerate(arrays)}
        self._enqueue(self._transport.exchange, outgoing, dict(enumerate(buffers)))
        return [
            self._packer.unpack(buffer, [shape], dtype)[0]
            for buffer, shape in zip(buffers, shapes, strict=True)
        ]

    def _as_bytes(self, value: Any) -> Array:
        return to(np.frombuffer(bytearray(pickle.dumps(value)), np.uint8), self.device)

    def _gather_lengths(self, length: int) -> list[int]:
        """Return the length that each rank says, when all have come."""
        mine = to(np.array([length], np.int64), self.device)
        buffer = self._packer.new(self.size * mine.nbytes)
        self._enqueue(self._transport.all_gather, self._packer.pack([mine]), buffer)
        lengths: list[int] = self._read(buffer).view(np.int64).tolist()
        return lengths

    def _read(self, buffer: Array) -> HostArray:
        """Return a buffer in host memory, once it is full; NCCL itself would wait for ever."""
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
    bootstrap: Communicator | Rendezvous | None,
    timeout: float,
    rank: int | None,
    world_size: int | None,
    address: str | None,
) -> Communicator | Rendezvous | RankAssignment:
    """Return who tells this rank of the others."""
    if bootstrap is not None:
        if (rank, world_size, address) != (None, None, None):
            raise ArgumentError(
                "expected a bootstrap, or rank, world_size and address, got both; the bootstrap "
                "knows them"
            )
        return bootstrap
    seat = find_rank_assignment(rank, world_size, address)
    if seat is not None:
        return seat
    from nbrt.distributed.communicators.mpi import MpiCommunicator

    return MpiCommunicator(device=Device("cpu", 0), timeout=timeout)
