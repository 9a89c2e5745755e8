"""`NcclTransport`: memory between GPUs, by NCCL through CuPy."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from nbrt.errors import BackendUnavailableError, DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt.backends.cuda.driver import Driver
    from nbrt.typing import Array

__all__ = ["NcclTransport", "load_nccl"]

# NumPy's names of what NCCL calculates with; complex numbers are pairs, which can be summed.
_TYPES = {
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "uint32": "UINT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
}
_PAIRS = {"complex64": "FLOAT32", "complex128": "FLOAT64"}
# Bytes 0 and 1: "or" is the maximum, "and" the minimum.
_OF_BOOL = {"sum": "MAX", "prod": "MIN", "min": "MIN", "max": "MAX"}


class NcclTransport:
    """A rank of a communicator of NCCL; see `Transport`.

    Parameters
    ----------
    driver : Driver
        CUDA.
    nccl : module
        ``cupy.cuda.nccl``.
    index : int
        The device.
    rank, size : int
        This rank's number, and how many there are.
    share : callable
        Returns rank 0's value on every rank.

    Raises
    ------
    DistributedError
        If NCCL cannot connect the ranks.
    """

    def __init__(
        self,
        driver: Driver,
        nccl: Any,
        index: int,
        rank: int,
        size: int,
        share: Callable[[Any], Any],
    ) -> None:
        self._driver = driver
        self._nccl = nccl
        self._index = index
        self._size = size
        key = share(nccl.get_unique_id() if rank == 0 else None)
        self._comm: Any = self._call(nccl.NcclCommunicator, size, key, rank)

    def reduces(self, dtype: Any, op: str) -> bool:
        """Return whether NCCL does a reduction; what it makes of NaN in extremes is its own."""
        return self._reduction(dtype, op) is not None

    def broadcast(self, queue: Any, buffer: Array, root: int) -> None:
        """Fill a buffer with that of `root`."""
        address = _address(buffer)
        self._start(
            "broadcast", address, address, buffer.nbytes, self._nccl.NCCL_UINT8, root, queue.handle
        )

    def all_gather(self, queue: Any, outgoing: Array, incoming: Array) -> None:
        """Gather buffers of one size."""
        addresses = _address(outgoing), _address(incoming)
        self._start("allGather", *addresses, outgoing.nbytes, self._nccl.NCCL_UINT8, queue.handle)

    def all_reduce(self, queue: Any, outgoing: Array, incoming: Array, dtype: Any, op: str) -> None:
        """Reduce."""
        self._reduce("allReduce", queue, outgoing, incoming, dtype, op)

    def reduce_scatter(
        self, queue: Any, outgoing: Array, incoming: Array, dtype: Any, op: str
    ) -> None:
        """Reduce, and keep one of `size` equal parts."""
        self._reduce("reduceScatter", queue, outgoing, incoming, dtype, op)

    def exchange(
        self, queue: Any, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]
    ) -> None:
        """Send and receive, all at once; empty buffers are left out on both sides."""
        self._call(self._nccl.groupStart)
        try:
            for direction, buffers in (("send", outgoing), ("recv", incoming)):
                for peer, buffer in buffers.items():
                    if buffer.nbytes:
                        self._start(
                            direction, _address(buffer), buffer.nbytes, self._nccl.NCCL_UINT8,
                            peer, queue.handle,
                        )  # fmt: skip
        finally:
            self._call(self._nccl.groupEnd)

    def close(self) -> None:
        """Destroy the communicator."""
        self._call(self._comm.destroy)

    def abort(self) -> None:
        """Destroy the communicator, with the kernels that wait for other ranks."""
        self._call(self._comm.abort)

    # -- how ---------------------------------------------------------------------------------------

    def _reduction(self, dtype: Any, op: str) -> tuple[int, int, int] | None:
        """Return NCCL's type, its size in bytes, and NCCL's operation; None if there is none."""
        name, itemsize = str(dtype), dtype.itemsize
        if name == "bool":
            kind, op = "UINT8", _OF_BOOL[op]
        elif name in _PAIRS and op == "sum":
            kind, itemsize = _PAIRS[name], itemsize // 2
        elif name in _TYPES and (dtype.kind in "iu" or op in ("sum", "prod")):
            kind = _TYPES[name]
        else:
            return None
        nccl = self._nccl
        return getattr(nccl, f"NCCL_{kind}"), itemsize, getattr(nccl, f"NCCL_{op.upper()}")

    def _reduce(
        self, function: str, queue: Any, outgoing: Array, incoming: Array, dtype: Any, op: str
    ) -> None:
        found = self._reduction(dtype, op)
        assert found is not None, (dtype, op)
        kind, itemsize, operation = found
        addresses = _address(outgoing), _address(incoming)
        count = incoming.nbytes // itemsize
        self._start(function, *addresses, count, kind, operation, queue.handle)

    def _start(self, function: str, *args: Any) -> None:
        self._call(self._comm.check_async_error)
        self._call(getattr(self._comm, function), *args)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            with self._driver.on_device(self._index):
                return function(*args)
        except self._nccl.NcclError as error:
            raise DistributedError(
                f"NCCL failed on cuda:{self._index} in {function.__name__}: {error}; set "
                f"NCCL_DEBUG=INFO to see why"
            ) from error


def load_nccl() -> Any:
    """Return ``cupy.cuda.nccl``.

    Raises
    ------
    BackendUnavailableError
        If NCCL's library is not there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns of what is raised here
        from cupy.cuda import nccl
    if not nccl.available:
        raise BackendUnavailableError(
            "expected NCCL's library, which CuPy could not load; install it with pip install "
            "nvidia-nccl-cu13, or nvidia-nccl-cu12 for CUDA 12"
        )
    return nccl


def _address(buffer: Array) -> int:
    return int(buffer.data.ptr)
