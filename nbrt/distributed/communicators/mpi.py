"""`MpiCommunicator`: ranks that are MPI processes, through mpi4py."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt import config
from nbrt._internal.device import Device
from nbrt.distributed.communicators.adapter import Adapter
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.checks import (
    check_members,
    check_root,
    check_timeout,
    unsendable,
)
from nbrt.distributed.communicators.packing import MessagePacker, counts_of
from nbrt.distributed.communicators.signatures import CallSignature, mismatch_error
from nbrt.distributed.communicators.watchdog import FailureDetector, WaitPoint
from nbrt.errors import (
    ArgumentTypeError,
    BackendUnavailableError,
    DistributedError,
    RankMismatchError,
)
from nbrt.runtime.array import copy
from nbrt.runtime.device import default_device, device_count, resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpi4py import MPI

    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array, DeviceLike

__all__ = ["MpiCommunicator"]

_GROUP_TAG = 2
"""The tag of the empty messages that members of a new group exchange."""

_BLOCK_BYTES = 256
"""Bytes of the first exchange of a pickled object: its length, and its start."""

_MAX_INLINE = _BLOCK_BYTES - 8

Shapes = list[tuple[int, ...]]


class MpiCommunicator(Adapter):
    """A rank of a group of MPI processes; see `Communicator`.

    MPI reads arrays of CPU devices directly. It reads arrays of a GPU directly if it supports GPU
    memory (``NBRT_MPI_CUDA_AWARE``, or a report of MPI), else copies in host memory.

    With ``NBRT_DISTRIBUTED_CHECK=1`` ranks compare their operations before each one, which costs
    one more exchange of 8 bytes. Without it, different operations end in a timeout, and arrays that
    do not match end in an error of MPI or in wrong values.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        The ranks, all of which call this; ``MPI.COMM_WORLD`` by default. It is duplicated, so its
        messages and those of nbrt stay separate.
    device : Device, str, int or None
        The device of this rank's arrays; by default the ranks of a machine take the devices of the
        default kind in turn.
    timeout : float
        Seconds to wait for the other ranks in each operation.

    Raises
    ------
    BackendUnavailableError
        If mpi4py or an MPI library is missing.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        device: DeviceLike = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        seconds = check_timeout(timeout)
        source = _mpi().COMM_WORLD if comm is None else comm
        chosen = _local_device(source) if device is None else resolve_device(device)
        failure_detector = FailureDetector(source.Dup())
        self._set_up(source.Dup(), tuple(range(source.size)), chosen, seconds, failure_detector, ())

    def _set_up(
        self,
        comm: MPI.Intracomm,
        ranks: tuple[int, ...],
        device: Device,
        timeout: float,
        failure_detector: FailureDetector,
        key: tuple[Any, ...],
    ) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self.ranks = ranks
        self.device = device
        self._timeout = timeout
        self._comm = comm
        self._failure_detector = failure_detector
        self._key = key
        self._count = 0
        self._digests = np.empty(1, np.int64), np.empty(self.size, np.int64)
        self._groups: dict[tuple[int, ...], int] = {}
        is_host = current_stream(device).interface.capabilities.host_addressable
        self._packer = MessagePacker(device, is_staged=not is_host and not _is_cuda_aware(comm))

    # -- operations --------------------------------------------------------------------------------

    def _broadcast(self, array: Array, root: int, signature: CallSignature) -> Array:
        point = self._enter(signature)
        is_root = self.rank == root
        buffer = self._packer.pack([array], True) if is_root else self._packer.new(array.nbytes)
        self._wait(point, self._comm.Ibcast, [buffer, array.nbytes, _mpi().BYTE], root)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def _all_reduce(self, array: Array, op: ReduceOp, signature: CallSignature) -> Array:
        point = self._enter(signature)
        known = _known_reduction(array.dtype, op)
        if known is None:
            return self._packer.reduce(self._gather(point, array, [array.shape] * self.size), op)
        datatype, operation = known
        buffer = self._packer.new(array.nbytes)
        outgoing = [self._packer.pack([array]), array.size, datatype]
        incoming = [buffer, array.size, datatype]
        self._wait(point, self._comm.Iallreduce, outgoing, incoming, operation)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def _all_gather(self, array: Array, shapes: Shapes, signature: CallSignature) -> list[Array]:
        return self._gather(self._enter(signature), array, shapes)

    def _reduce_scatter(
        self, arrays: Sequence[Array], op: ReduceOp, signature: CallSignature
    ) -> Array:
        shapes, dtype = [array.shape for array in arrays], arrays[0].dtype
        own = shapes[self.rank]
        point = self._enter(signature)
        known = _known_reduction(dtype, op)
        if known is None:
            return self._packer.reduce(self._exchange(point, arrays, [own] * self.size), op)
        datatype, operation = known
        counts = [math.prod(shape) for shape in shapes]
        sent = self._packer.pack(arrays)
        buffer = self._packer.new(counts[self.rank] * dtype.itemsize)
        outgoing = [sent, sum(counts), datatype]
        incoming = [buffer, counts[self.rank], datatype]
        self._wait(point, self._comm.Ireduce_scatter, outgoing, incoming, counts, operation)
        return self._packer.unpack(buffer, [own], dtype)[0]

    def _all_to_all(
        self, arrays: Sequence[Array], shapes: Shapes, signature: CallSignature
    ) -> list[Array]:
        sent = [array.shape for array in arrays]
        point = self._enter(signature)
        self._compare_shapes(point, dict(enumerate(sent)), dict(enumerate(shapes)))
        return self._exchange(point, arrays, shapes)

    def _scatter(
        self, arrays: Sequence[Array], out: Array, root: int, signature: CallSignature
    ) -> Array:
        if arrays and arrays[0].dtype != out.dtype:
            raise ArgumentTypeError(
                f"expected arrays of out's dtype {out.dtype}, got {arrays[0].dtype}"
            )
        point = self._enter(signature)
        shapes = [array.shape for array in arrays]
        self._compare_shapes(point, dict(enumerate(shapes)), {root: out.shape})
        outgoing = None
        if arrays:
            counts = counts_of(shapes, out.dtype)
            outgoing = [self._packer.pack(arrays), counts, _mpi().BYTE]
        buffer = self._packer.new(out.nbytes)
        incoming = [buffer, out.nbytes, _mpi().BYTE]
        self._wait(point, self._comm.Iscatterv, outgoing, incoming, root)
        received = self._packer.unpack(buffer, [out.shape], out.dtype)[0]
        copy(out, received, stream=current_stream(self.device))
        return out

    def barrier(self) -> None:
        """Wait for every rank of the group."""
        self._wait(self._enter(CallSignature("barrier")), self._comm.Ibarrier)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, pickled; see `Communicator`."""
        data = _pickled(value)
        return self._gather_pickled(self._enter(CallSignature("all_gather_object")), data)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object of `root`, pickled; see `Communicator`."""
        check_root(root, self.size)
        data = _pickled(value) if self.rank == root else b""
        point = self._enter(CallSignature("broadcast_object", root=int(root)))
        block = _block(data)
        self._wait(point, self._comm.Ibcast, block, root)
        length = _length(block)
        if length > _MAX_INLINE:
            block = np.frombuffer(bytearray(data or length), np.uint8)
            self._wait(point, self._comm.Ibcast, block, root)
            return pickle.loads(block.tobytes())
        return pickle.loads(block[8 : 8 + length].tobytes())

    def group(self, ranks: Sequence[int]) -> MpiCommunicator:
        """Return a group of some of these ranks; see `Communicator`."""
        members = check_members(ranks, self.rank, self.size)
        # All members count their groups alike: the number distinguishes groups of the same ranks.
        number = self._groups[members] = self._groups.get(members, 0) + 1
        world_ranks = tuple(self.ranks[member] for member in members)
        key = (self._key, members, number)
        self._meet(WaitPoint(key, world_ranks, 0, CallSignature("group", shape=members)), members)
        chosen = self._comm.group.Incl(members)
        made = object.__new__(MpiCommunicator)
        comm = self._comm.Create_group(chosen, _GROUP_TAG)
        chosen.Free()
        made._set_up(comm, world_ranks, self.device, self._timeout, self._failure_detector, key)
        return made

    # -- the end -----------------------------------------------------------------------------------

    def announce_failure(self, error: BaseException) -> None:
        """Notify every rank of the world that this rank ends with `error`.

        The other ranks raise `RankFailedError` when they wait. A process that ends with an uncaught
        exception calls this itself.
        """
        self._failure_detector.announce_failure(error)

    @contextmanager
    def announce_failures(self) -> Iterator[None]:
        """Announce an exception that ends the block, and raise it."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            self.announce_failure(error)
            raise

    def close(self) -> None:
        """Free the group in MPI; every member calls it.

        For the world, wait for all ranks, and end the job if a rank has failed and others stay. The
        exit of the process does the same.
        """
        if self._comm:
            if not self._key:
                self._failure_detector.leave()
            self._comm.Free()

    def _enter(self, signature: CallSignature) -> WaitPoint:
        """Start an operation, and return the point at which this rank waits."""
        self._count += 1
        point = WaitPoint(self._key, self.ranks, self._count, signature)
        self._failure_detector.check(point)
        if config.settings().distributed_check:
            self._compare(point)
        return point

    def _wait(self, point: WaitPoint, function: Callable[..., MPI.Request], *args: Any) -> None:
        if not self._packer.is_host:
            current_stream(self.device).synchronize()  # MPI has no streams
        nbytes = sum(getattr(each[0], "nbytes", 0) for each in args if isinstance(each, list))
        try:
            self._failure_detector.wait(function(*args), point, self._timeout, nbytes, args)
        except _mpi().Exception as error:
            raise DistributedError(
                f"MPI failed in {point.signature} on rank {self.ranks[self.rank]}: "
                f"{str(error).partition(',')[0]}; if arrays may not match, set "
                f"NBRT_DISTRIBUTED_CHECK=1 for the ranks that differ"
            ) from error

    def _gather(self, point: WaitPoint, array: Array, shapes: Shapes) -> list[Array]:
        counts = counts_of(shapes, array.dtype)
        buffer = self._packer.new(sum(counts))
        outgoing = [self._packer.pack([array]), counts[self.rank], _mpi().BYTE]
        if len(set(counts)) == 1:
            self._wait(point, self._comm.Iallgather, outgoing, [buffer, _mpi().BYTE])
        else:
            self._wait(point, self._comm.Iallgatherv, outgoing, [buffer, counts, _mpi().BYTE])
        return self._packer.unpack(buffer, shapes, array.dtype)

    def _exchange(self, point: WaitPoint, arrays: Sequence[Array], shapes: Shapes) -> list[Array]:
        dtype = arrays[0].dtype
        sent, counts = counts_of([array.shape for array in arrays], dtype), counts_of(shapes, dtype)
        buffer = self._packer.new(sum(counts))
        outgoing = [self._packer.pack(arrays), sent, _mpi().BYTE]
        self._wait(point, self._comm.Ialltoallv, outgoing, [buffer, counts, _mpi().BYTE])
        return self._packer.unpack(buffer, shapes, dtype)

    def _gather_objects(self, point: WaitPoint, value: Any) -> list[Any]:
        return self._gather_pickled(point, pickle.dumps(value))

    def _gather_pickled(self, point: WaitPoint, data: bytes) -> list[Any]:
        blocks = np.empty((self.size, _BLOCK_BYTES), np.uint8)
        self._wait(point, self._comm.Iallgather, _block(data), blocks)
        lengths = [_length(block) for block in blocks]
        if max(lengths) <= _MAX_INLINE:
            return [
                pickle.loads(block[8 : 8 + length].tobytes())
                for block, length in zip(blocks, lengths, strict=True)
            ]
        every = np.empty(sum(lengths), np.uint8)
        self._wait(point, self._comm.Iallgatherv, data, [every, lengths, _mpi().BYTE])
        ends = itertools.accumulate(lengths)
        return [
            pickle.loads(every[end - length : end].tobytes())
            for end, length in zip(ends, lengths, strict=True)
        ]

    def _meet(self, point: WaitPoint, members: tuple[int, ...]) -> None:
        """Wait for all members of a new group, because MPI's group creation has no timeout.

        This is a dissemination barrier: each step doubles the ranks that a rank knows of.
        """
        position, step = members.index(self.rank), 1
        while step < len(members):
            ahead = members[(position + step) % len(members)]
            behind = members[position - step]
            self._comm.Isend(b"", ahead, _GROUP_TAG).Free()
            self._wait(point, self._comm.Irecv, bytearray(), behind, _GROUP_TAG)
            step *= 2

    def _compare(self, point: WaitPoint) -> None:
        """Raise if ranks are in different operations."""
        mine, every = self._digests
        mine[0] = _digest(point.signature)
        self._wait(point, self._comm.Iallgather, mine, every)
        if every.tobytes() != mine.tobytes() * self.size:
            headers = self._gather_objects(point, point.signature)
            raise mismatch_error(dict(zip(self.ranks, headers, strict=True)))

    def _compare_shapes(
        self, point: WaitPoint, given: dict[int, Any], wanted: dict[int, Any]
    ) -> None:
        """Raise, with checks enabled, if shapes differ from those that receivers expect."""
        if not config.settings().distributed_check:
            return
        every = self._gather_objects(point, (given, wanted))
        for giver, (shapes, _) in enumerate(every):
            for taker, shape in shapes.items():
                expected = every[taker][1][giver]
                if shape != expected:
                    raise RankMismatchError(
                        f"expected an array of shape {expected} from rank {self.ranks[giver]} for "
                        f"rank {self.ranks[taker]} in {point.signature}, got {shape}"
                    )


@functools.lru_cache
def _digest(signature: CallSignature) -> int:
    return zlib.crc32(str(signature).encode())


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise unsendable(value, error) from error


def _block(data: bytes) -> Any:
    """Return the first block of a pickled object: its length, and its start."""
    block = np.zeros(_BLOCK_BYTES, np.uint8)
    block[:8].view(np.int64)[0] = len(data)
    head = np.frombuffer(data[:_MAX_INLINE], np.uint8)
    block[8 : 8 + head.size] = head
    return block


def _length(block: Any) -> int:
    return int(block[:8].view(np.int64)[0])


@functools.lru_cache
def _known_reduction(dtype: np.dtype[Any], op: ReduceOp) -> tuple[MPI.Datatype, MPI.Op] | None:
    """Return MPI's type and operation of a reduction; None if its results differ from NumPy's.

    MPI has neither half precision nor byte orders, and does not define the minimum of NaN.
    """
    mpi = _mpi()
    if dtype.kind == "b":
        return mpi.C_BOOL, mpi.LOR if op in ("sum", "max") else mpi.LAND
    is_float = dtype.char in "fdgFDG"
    if not dtype.isnative or not (dtype.kind in "iu" or (is_float and op in ("sum", "prod"))):
        return None
    return mpi.Datatype.fromcode(dtype.char), getattr(mpi, op.upper())


def _is_cuda_aware(comm: MPI.Intracomm) -> bool:
    chosen = config.settings().mpi_cuda_aware
    if chosen is not None:
        return chosen
    # MPI 4.1 reports it; earlier versions have no portable query.
    return "cuda" in (comm.Get_info().Get("mpi_memory_alloc_kinds") or "")


def _local_device(comm: MPI.Intracomm) -> Device:
    kind = default_device().kind
    machine = comm.Split_type(_mpi().COMM_TYPE_SHARED)
    index = machine.rank % device_count(kind)
    machine.Free()
    return Device(kind, index)


@functools.cache
def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailableError(
            f"expected mpi4py and an MPI library, got {type(error).__name__}: {error}; install "
            f'them with pip install "nbrt[mpi]" mpich, or load the MPI module of your cluster'
        ) from error
    return MPI
