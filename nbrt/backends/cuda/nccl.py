"""`NcclTransport`: collectives of NCCL through CuPy; `TcpStore`: a store for its bootstrap."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from nbrt.errors import BackendUnavailableError, DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt.backends.cuda.driver import Driver
    from nbrt.typing import Array

__all__ = ["NcclTransport", "TcpStore", "load_nccl"]

# NumPy's dtype -> NCCL's. Complex numbers are pairs, which NCCL can sum.
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


_ATTEMPT = 5.0
"""Timeout of one connection to the server, in seconds."""

_PAUSE = 1e-3
"""Seconds between two connections to a server that starts."""


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
        The number of this rank, and the number of ranks.
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
        """Return whether NCCL supports a reduction with NumPy's semantics."""
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
        """Send and receive in one group; both sides skip empty buffers."""
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
        """Destroy the communicator and its kernels that wait for other ranks."""
        self._call(self._comm.abort)

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
        reduction = self._reduction(dtype, op)
        assert reduction is not None, (dtype, op)
        kind, itemsize, operation = reduction
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


class TcpStore:
    """CuPy's store of small values, over TCP; see `Store`.

    Parameters
    ----------
    host : str
        A name or IPv4 address of the server's machine.
    port : int
        Its port.
    is_server : bool
        Whether this process serves it.

    Raises
    ------
    DistributedError
        If this process cannot listen there.
    """

    def __init__(self, host: str, port: int, is_server: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns of a missing NCCL, which is not used here
            from cupyx.distributed import _store
        self._place = host, port
        self._proxy = _store.TCPStoreProxy(host, port)
        self._server: Any = None
        if is_server:
            self._check_free()
            self._server = _store.TCPStore(1)  # the size is for its barrier, which we do not use
            # A thread, not the process of its `run`: that forks, which a process with CUDA and
            # threads should not, cannot be spawned, and keeps the program from ending.
            thread = threading.Thread(
                target=self._server._server_loop, args=self._place, name="nbrt-store", daemon=True
            )
            self._server._set_process(thread)
            thread.start()
            while thread.is_alive() and not self._is_reachable():
                time.sleep(_PAUSE)

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none yet."""
        self._look()
        try:
            value: bytes = self._proxy[key]
        except RuntimeError as error:
            if str(error) == repr(key):  # the server's KeyError
                return None
            raise ConnectionError(str(error)) from error
        return value

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""
        self._look()
        try:
            self._proxy[key] = value
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """End the server if this process serves."""
        if self._server is not None:
            self._server.stop()

    def _look(self) -> None:
        # CuPy's proxy tries for 25 s to reach the server; the caller sets the timeout.
        socket.create_connection(self._place, _ATTEMPT).close()

    def _is_reachable(self) -> bool:
        try:
            self._look()
        except OSError:
            return False
        return True

    def _check_free(self) -> None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(self._place)
        except OSError as error:
            host, port = self._place
            raise DistributedError(
                f"expected an address of this machine, where rank 0 runs, with a free port, got "
                f"{host}:{port} ({error})"
            ) from error


def load_nccl() -> Any:
    """Return ``cupy.cuda.nccl``.

    Raises
    ------
    BackendUnavailableError
        If NCCL's library is missing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns of the missing library
        from cupy.cuda import nccl
    if not nccl.available:
        raise BackendUnavailableError(
            "expected NCCL's library, which CuPy could not load; install it with pip install "
            "nvidia-nccl-cu13, or nvidia-nccl-cu12 for CUDA 12"
        )
    return nccl


def _address(buffer: Array) -> int:
    return int(buffer.data.ptr)
