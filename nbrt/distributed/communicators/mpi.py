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
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.checks import (
    check_array,
    check_arrays,
    check_elements,
    check_members,
    check_op,
    check_root,
    check_shapes,
    check_timeout,
    refuse_pickling,
    unsendable,
)
from nbrt.distributed.communicators.packing import Packer, counts_of
from nbrt.distributed.communicators.signatures import CallSignature, mismatch_error
from nbrt.distributed.communicators.watchdog import FailureDetector, Place
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
    from typing import NoReturn

    from mpi4py import MPI

    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array, DeviceLike

__all__ = ["MpiCommunicator"]

_MEETING = 2
"""The tag of the empty messages with which the members of a new group meet."""

_SMALL = 256
"""Bytes of a pickled object, with its length, that travel in the first exchange."""

_ROOM = _SMALL - 8

Shapes = list[tuple[int, ...]]


class MpiCommunicator:
    """A rank of a group of MPI processes; see `Communicator`.

    Arrays of CPU devices are given to MPI as they are. Those of a GPU are too where MPI can read
    its memory (``NBRT_MPI_CUDA_AWARE``, or what MPI says of itself), else copies in host memory.

    Ranks compare what they came to before each operation if ``NBRT_DISTRIBUTED_CHECK`` is 1, which
    costs one more exchange of 8 bytes. Without it, different operations are found out when the
    timeout is over, and arrays that do not fit end in MPI's own error or in wrong values.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Whose ranks take part, all of them here and now; ``MPI.COMM_WORLD`` by default. It is
        duplicated, so its own messages never mix with ours.
    device : Device, str, int or None
        Where this rank's arrays live; by default the ranks of a machine take the devices of the
        default kind in turn.
    timeout : float
        Seconds to wait for the others, in each operation.

    Raises
    ------
    BackendUnavailableError
        If mpi4py or an MPI library is missing.
    """

    is_in_process = False

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
        self._packer = Packer(device, is_staged=not is_host and not _is_cuda_aware(comm))

    @property
    def timeout(self) -> float:
        """Seconds to wait for the others."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = check_timeout(seconds)

    def __repr__(self) -> str:
        return f"MpiCommunicator(rank={self.rank}, size={self.size}, device='{self.device}')"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def check_rank(self, generator: object, is_default: bool = False) -> None:
        """Do nothing: a process is one rank; see `Communicator`."""

    # -- operations --------------------------------------------------------------------------------

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return what `root` gave; see `Communicator`."""
        check_array(array)
        check_root(root, self.size)
        header = CallSignature(
            "broadcast", shape=array.shape, dtype=_name(array.dtype), root=int(root)
        )
        place = self._enter(header)
        is_root = self.rank == root
        buffer = self._packer.pack([array], True) if is_root else self._packer.new(array.nbytes)
        self._wait(place, self._comm.Ibcast, [buffer, array.nbytes, _mpi().BYTE], root)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all gave; see `Communicator`."""
        check_array(array)
        check_op(op)
        header = CallSignature("all_reduce", shape=array.shape, dtype=_name(array.dtype), op=op)
        place = self._enter(header)
        known = _known_reduction(array.dtype, op)
        if known is None:
            return self._packer.reduce(self._gather(place, array, [array.shape] * self.size), op)
        datatype, operation = known
        buffer = self._packer.new(array.nbytes)
        outgoing = [self._packer.pack([array]), array.size, datatype]
        incoming = [buffer, array.size, datatype]
        self._wait(place, self._comm.Iallreduce, outgoing, incoming, operation)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave; see `Communicator`."""
        check_array(array)
        check_shapes(shapes, self.size)
        self._check_own_shape(array, shapes)
        every = [array.shape] * self.size if shapes is None else [tuple(each) for each in shapes]
        place = self._enter(
            CallSignature("all_gather", shape=_said(every), dtype=_name(array.dtype))
        )
        return self._gather(place, array, every)

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all gave for this rank; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_op(op)
        shapes, dtype = [array.shape for array in arrays], arrays[0].dtype
        mine = shapes[self.rank]
        header = CallSignature("reduce_scatter", shape=_said(shapes), dtype=_name(dtype), op=op)
        place = self._enter(header)
        known = _known_reduction(dtype, op)
        if known is None:
            return self._packer.reduce(self._exchange(place, arrays, [mine] * self.size), op)
        datatype, operation = known
        counts = [math.prod(shape) for shape in shapes]
        given = self._packer.pack(arrays)
        buffer = self._packer.new(counts[self.rank] * dtype.itemsize)
        outgoing = [given, sum(counts), datatype]
        incoming = [buffer, counts[self.rank], datatype]
        self._wait(place, self._comm.Ireduce_scatter, outgoing, incoming, counts, operation)
        return self._packer.unpack(buffer, [mine], dtype)[0]

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave for this one; see `Communicator`."""
        check_arrays(arrays, self.size)
        check_shapes(shapes, self.size)
        given = [array.shape for array in arrays]
        wanted = given if shapes is None else [tuple(shape) for shape in shapes]
        place = self._enter(CallSignature("all_to_all", dtype=_name(arrays[0].dtype)))
        self._compare_shapes(place, dict(enumerate(given)), dict(enumerate(wanted)))
        return self._exchange(place, arrays, wanted)

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with what `root` gave for this rank; see `Communicator`."""
        check_array(out)
        check_root(root, self.size)
        outgoing, given = None, {}
        if self.rank == root:
            check_arrays(arrays, self.size)
            given = {rank: array.shape for rank, array in enumerate(arrays or ())}
            if arrays is not None and arrays[0].dtype != out.dtype:
                raise ArgumentTypeError(
                    f"expected arrays of out's dtype {out.dtype}, got {arrays[0].dtype}"
                )
        place = self._enter(CallSignature("scatter", dtype=_name(out.dtype), root=int(root)))
        self._compare_shapes(place, given, {int(root): out.shape})
        if arrays is not None and given:
            counts = counts_of(list(given.values()), arrays[0].dtype)
            outgoing = [self._packer.pack(arrays), counts, _mpi().BYTE]
        buffer = self._packer.new(out.nbytes)
        incoming = [buffer, out.nbytes, _mpi().BYTE]
        self._wait(place, self._comm.Iscatterv, outgoing, incoming, root)
        found = self._packer.unpack(buffer, [out.shape], out.dtype)[0]
        copy(out, found, stream=current_stream(self.device))
        return out

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self._wait(self._enter(CallSignature("barrier")), self._comm.Ibarrier)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return what each rank gave, pickled; see `Communicator`."""
        data = _pickled(value)
        return self._gather_pickled(self._enter(CallSignature("all_gather_object")), data)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object that `root` gave, pickled; see `Communicator`."""
        check_root(root, self.size)
        data = _pickled(value) if self.rank == root else b""
        place = self._enter(CallSignature("broadcast_object", root=int(root)))
        block = _block(data)
        self._wait(place, self._comm.Ibcast, block, root)
        length = _length(block)
        if length > _ROOM:
            block = np.frombuffer(bytearray(data or length), np.uint8)
            self._wait(place, self._comm.Ibcast, block, root)
            return pickle.loads(block.tobytes())
        return pickle.loads(block[8 : 8 + length].tobytes())

    def group(self, ranks: Sequence[int]) -> MpiCommunicator:
        """Return a group of some of these ranks; see `Communicator`."""
        members = check_members(ranks, self.rank, self.size)
        # Its members count their groups alike, so the number tells groups of the same ranks apart.
        number = self._groups[members] = self._groups.get(members, 0) + 1
        world_ranks = tuple(self.ranks[member] for member in members)
        key = (self._key, members, number)
        self._meet(Place(key, world_ranks, 0, CallSignature("group", shape=members)), members)
        chosen = self._comm.group.Incl(members)
        made = object.__new__(MpiCommunicator)
        comm = self._comm.Create_group(chosen, _MEETING)
        chosen.Free()
        made._set_up(comm, world_ranks, self.device, self._timeout, self._failure_detector, key)
        return made

    # -- the end -----------------------------------------------------------------------------------

    def announce_failure(self, error: BaseException) -> None:
        """Tell every rank of the world that this one ends with `error`.

        They raise `RankFailedError` where they wait for others. A process that ends with an
        exception nobody caught does so on its own.
        """
        self._failure_detector.announce_failure(error)

    @contextmanager
    def announce_failures(self) -> Iterator[None]:
        """Announce the exception that ends the block, if one does, and pass it on."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            self.announce_failure(error)
            raise

    def close(self) -> None:
        """Give the group back to MPI; every member calls it.

        The world's waits for all ranks, and ends the job if one has failed and others stay. That
        happens when the process exits, unless it has been called before.
        """
        if self._comm:
            if not self._key:
                self._failure_detector.leave()
            self._comm.Free()

    # -- how ---------------------------------------------------------------------------------------

    def _enter(self, header: CallSignature) -> Place:
        """Begin an operation."""
        self._count += 1
        place = Place(self._key, self.ranks, self._count, header)
        self._failure_detector.check(place)
        if config.settings().distributed_check:
            self._compare(place)
        return place

    def _wait(self, place: Place, function: Callable[..., MPI.Request], *args: Any) -> None:
        if not self._packer.is_host:
            current_stream(self.device).synchronize()  # MPI knows no streams
        nbytes = sum(getattr(each[0], "nbytes", 0) for each in args if isinstance(each, list))
        try:
            self._failure_detector.wait(function(*args), place, self._timeout, nbytes, args)
        except _mpi().Exception as error:
            raise DistributedError(
                f"MPI failed in {place.header} on rank {self.ranks[self.rank]}: "
                f"{str(error).partition(',')[0]}; if ranks may have given arrays that do not fit, "
                f"set NBRT_DISTRIBUTED_CHECK=1 to be told which"
            ) from error

    def _gather(self, place: Place, array: Array, shapes: Shapes) -> list[Array]:
        counts = counts_of(shapes, array.dtype)
        buffer = self._packer.new(sum(counts))
        outgoing = [self._packer.pack([array]), counts[self.rank], _mpi().BYTE]
        if len(set(counts)) == 1:
            self._wait(place, self._comm.Iallgather, outgoing, [buffer, _mpi().BYTE])
        else:
            self._wait(place, self._comm.Iallgatherv, outgoing, [buffer, counts, _mpi().BYTE])
        return self._packer.unpack(buffer, shapes, array.dtype)

    def _exchange(self, place: Place, arrays: Sequence[Array], shapes: Shapes) -> list[Array]:
        dtype = arrays[0].dtype
        sent, counts = counts_of([array.shape for array in arrays], dtype), counts_of(shapes, dtype)
        buffer = self._packer.new(sum(counts))
        outgoing = [self._packer.pack(arrays), sent, _mpi().BYTE]
        self._wait(place, self._comm.Ialltoallv, outgoing, [buffer, counts, _mpi().BYTE])
        return self._packer.unpack(buffer, shapes, dtype)

    def _gather_objects(self, place: Place, value: Any) -> list[Any]:
        return self._gather_pickled(place, pickle.dumps(value))

    def _gather_pickled(self, place: Place, data: bytes) -> list[Any]:
        blocks = np.empty((self.size, _SMALL), np.uint8)
        self._wait(place, self._comm.Iallgather, _block(data), blocks)
        lengths = [_length(block) for block in blocks]
        if max(lengths) <= _ROOM:
            return [
                pickle.loads(block[8 : 8 + length].tobytes())
                for block, length in zip(blocks, lengths, strict=True)
            ]
        every = np.empty(sum(lengths), np.uint8)
        self._wait(place, self._comm.Iallgatherv, data, [every, lengths, _mpi().BYTE])
        ends = itertools.accumulate(lengths)
        return [
            pickle.loads(every[end - length : end].tobytes())
            for end, length in zip(ends, lengths, strict=True)
        ]

    def _meet(self, place: Place, members: tuple[int, ...]) -> None:
        """Wait until all members of a new group are here: MPI's own making of it cannot give up.

        In each round a rank hears of twice as many (a dissemination barrier).
        """
        position, step = members.index(self.rank), 1
        while step < len(members):
            ahead = members[(position + step) % len(members)]
            behind = members[position - step]
            self._comm.Isend(b"", ahead, _MEETING).Free()
            self._wait(place, self._comm.Irecv, bytearray(), behind, _MEETING)
            step *= 2

    def _compare(self, place: Place) -> None:
        """Raise unless every rank came to the same operation."""
        mine, every = self._digests
        mine[0] = _digest(place.header)
        self._wait(place, self._comm.Iallgather, mine, every)
        if every.tobytes() != mine.tobytes() * self.size:
            headers = self._gather_objects(place, place.header)
            raise mismatch_error(dict(zip(self.ranks, headers, strict=True)))

    def _compare_shapes(self, place: Place, given: dict[int, Any], wanted: dict[int, Any]) -> None:
        """Raise, in checks, unless what ranks give has the shapes that others wait for."""
        if not config.settings().distributed_check:
            return
        every = self._gather_objects(place, (given, wanted))
        for giver, (shapes, _) in enumerate(every):
            for taker, shape in shapes.items():
                expected = every[taker][1][giver]
                if shape != expected:
                    raise RankMismatchError(
                        f"expected an array of shape {expected} from rank {self.ranks[giver]} for "
                        f"rank {self.ranks[taker]} in {place.header}, got {shape}"
                    )

    def _check_own_shape(self, array: Array, shapes: Sequence[tuple[int, ...]] | None) -> None:
        if shapes is not None and tuple(shapes[self.rank]) != array.shape:
            raise ArgumentTypeError(
                f"expected an array of shape {tuple(shapes[self.rank])}, as shapes says of rank "
                f"{self.rank}, got {array.shape}"
            )


@functools.lru_cache
def _name(dtype: np.dtype[Any]) -> str:
    """Return what a header says of a dtype that can be sent."""
    check_elements(dtype)
    return str(dtype)


@functools.lru_cache
def _digest(header: CallSignature) -> int:
    return zlib.crc32(str(header).encode())


def _said(shapes: Shapes) -> Any:
    """Return what a header says of shapes: one if all are equal."""
    return shapes[0] if len(set(shapes)) == 1 else tuple(shapes)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise unsendable(value, error) from error


def _block(data: bytes) -> Any:
    """Return the first exchange of a pickled object: its length, and as much as has room."""
    block = np.zeros(_SMALL, np.uint8)
    block[:8].view(np.int64)[0] = len(data)
    head = np.frombuffer(data[:_ROOM], np.uint8)
    block[8 : 8 + head.size] = head
    return block


def _length(block: Any) -> int:
    return int(block[:8].view(np.int64)[0])


@functools.lru_cache
def _known_reduction(dtype: np.dtype[Any], op: ReduceOp) -> tuple[MPI.Datatype, MPI.Op] | None:
    """Return how MPI calls a reduction; None if it has none that gives what NumPy does.

    MPI knows neither half precision nor byte orders, and leaves open what the minimum of NaN is.
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
    # MPI 4.1 says so; before that, no portable question exists.
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
