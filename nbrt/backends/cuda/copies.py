"""Copies and fills of arrays in any layout, and adoption of other libraries' device arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbrt.backends.cuda.driver import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE
from nbrt.backends.cuda.failures import translate
from nbrt.errors import ArgumentTypeError, CaptureError, DeviceMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Array, HostArray

__all__ = ["Copier", "adopt_array"]

# dlpack.h: kDLCUDA, kDLCUDAManaged
_CUDA_DEVICE_TYPES = (2, 13)


class Copier:
    """Copies and fills of arrays on queues.

    Parameters
    ----------
    driver : Driver
        CUDA.
    side_queue : callable
        Returns an internal queue of a device, for work that a stream of another device cannot do.
    """

    def __init__(self, driver: Driver, side_queue: Callable[[int], CudaQueue]) -> None:
        self._driver = driver
        self._side_queue = side_queue
        self._peers: set[tuple[int, int]] = set()

    def copy(self, queue: CudaQueue, destination: Any, source: Any) -> None:
        """Enqueue a copy; the source is broadcast, the dtype converted within its kind.

        It does not wait for the device. It reads pageable host memory at the call, and writes it in
        stream order.
        """
        holders = (self._holder(destination), self._holder(source))
        if queue.index not in holders:
            raise DeviceMismatchError(
                f"expected an array of cuda:{queue.index}, where the stream is, got a copy from "
                f"{_name(holders[1])} to {_name(holders[0])}; use a stream of one of them"
            )
        if destination.size == 0:
            return
        with queue.entered():
            if holders[1] is None:
                self._from_host(queue, destination, source)
            elif holders[0] is None:
                self._to_host(queue, destination, source)
            elif holders[0] == holders[1]:
                self._within(queue, destination, source)
            else:
                self._between(queue, destination, source)

    def fill(self, queue: CudaQueue, array: Any, value: Any) -> None:
        """Enqueue ``array[...] = value``, with NumPy's rules for the conversion of a scalar."""
        holder = self._holder(array)
        if holder != queue.index:
            raise DeviceMismatchError(
                f"expected an array of cuda:{queue.index}, where the stream is, got one of "
                f"{_name(holder)}; use a stream of its device"
            )
        scalar = np.empty((), array.dtype)
        scalar[...] = value
        if array.size == 0:
            return
        with queue.entered():
            # By bytes, not by value: -0.0 equals 0 but has other bytes.
            if array.flags.c_contiguous and not any(scalar.tobytes()):
                self._driver.clear(int(array.data.ptr), array.nbytes, queue.handle)
            else:
                self._driver.cupy.copyto(array, scalar[()])

    def _holder(self, array: Any) -> int | None:
        if isinstance(array, np.ndarray):
            return None
        if isinstance(array, self._driver.cupy.ndarray):
            return int(array.data.device_id)
        raise ArgumentTypeError(
            f"expected a CuPy or NumPy array, got {array!r} of type {type(array).__name__}; "
            f"convert it with nbrt.asarray"
        )

    def _within(self, queue: CudaQueue, destination: Any, source: Any) -> None:
        if _same_bytes(destination, source):
            self._driver.copy(
                int(destination.data.ptr),
                int(source.data.ptr),
                source.nbytes,
                DEVICE_TO_DEVICE,
                queue.handle,
            )
        else:
            self._driver.cupy.copyto(destination, source)

    def _from_host(self, queue: CudaQueue, destination: Any, source: Any) -> None:
        """Copy page-locked values directly, others through a converted staging copy made now."""
        order = _shared_order(destination, source)
        is_direct = (
            order is not None
            and source.shape == destination.shape
            and source.dtype == destination.dtype
            and self._driver.is_page_locked(source.ctypes.data)
        )
        if is_direct:
            values = source
        else:
            order = _order_of(destination)
            values = self._staging(queue, destination.shape, destination.dtype, order)
            np.copyto(values, source)
        is_dense = order is not None and _is_contiguous(destination, order)
        landing = destination
        if not is_dense:
            landing = self._driver.cupy.empty(values.shape, values.dtype)
        self._driver.copy(
            int(landing.data.ptr), values.ctypes.data, values.nbytes, HOST_TO_DEVICE, queue.handle
        )
        if not is_dense:
            self._driver.cupy.copyto(destination, landing)
        queue.hold(values)

    def _to_host(self, queue: CudaQueue, destination: Any, source: Any) -> None:
        """Copy into page-locked memory directly, into other memory by staging and a host call."""
        order = _order_of(source)
        values = source
        if not _is_contiguous(source, order):
            values = self._driver.cupy.ascontiguousarray(source)
        is_direct = (
            destination.dtype == values.dtype
            and destination.shape == values.shape
            and _is_contiguous(destination, order)
            and self._driver.is_page_locked(destination.ctypes.data)
        )
        landing = destination
        if not is_direct:
            landing = self._staging(queue, values.shape, values.dtype, order)
        self._driver.copy(
            landing.ctypes.data, int(values.data.ptr), values.nbytes, DEVICE_TO_HOST, queue.handle
        )
        if is_direct:
            queue.hold((landing, values))
        else:
            queue.put(np.copyto, destination, landing)

    def _staging(
        self, queue: CudaQueue, shape: tuple[int, ...], dtype: Any, order: Literal["C", "F"]
    ) -> HostArray:
        """Return page-locked memory for a copy: with other memory CUDA would block the host.

        ``cupy.array`` does the same.
        """
        if queue.is_capturing():
            raise CaptureError(
                "expected page-locked host memory of the same dtype and layout for a copy in a "
                "captured stream, got other memory, from which CUDA cannot copy in a replay; copy "
                "into an array of nbrt.empty_pinned before the capture, and from it in the capture"
            )
        nbytes = math.prod(shape) * dtype.itemsize
        try:
            with self._driver.relaxed():
                memory = self._driver.staging.malloc(nbytes)
        except self._driver.errors as error:
            raise translate(error, f"page-locking {nbytes} bytes") from error
        return np.ndarray(shape, dtype, memory, order=order)

    def _between(self, queue: CudaQueue, destination: Any, source: Any) -> None:
        """Copy between devices: the source's device packs, the destination's device unpacks."""
        cupy = self._driver.cupy
        to, origin = int(destination.data.device_id), int(source.data.device_id)
        self._connect(to, origin)
        # Other threads use the usual side queues, which must not become part of a capture.
        side_queue = self._side_queue if queue.capture is None else queue.capture.side_queue
        source_queue = queue if origin == queue.index else side_queue(origin)
        target_queue = queue if to == queue.index else side_queue(to)
        source_queue.join(queue)
        packed = source
        if not (source.flags.c_contiguous and source.dtype == destination.dtype):
            with source_queue.entered():
                packed = cupy.ascontiguousarray(source.astype(destination.dtype, copy=False))
        target_queue.join(source_queue)
        is_direct = destination.flags.c_contiguous and destination.shape == packed.shape
        with target_queue.entered():
            landing = destination if is_direct else cupy.empty(packed.shape, packed.dtype)
            self._driver.copy_peer(
                int(landing.data.ptr),
                to,
                int(packed.data.ptr),
                origin,
                packed.nbytes,
                target_queue.handle,
            )
            if not is_direct:
                cupy.copyto(destination, landing)
        # Both ways: later work of `queue` sees the values, and the memory of `packed`, which the
        # source queue may reuse from now on, is read before.
        queue.join(target_queue)
        source_queue.join(target_queue)

    def _connect(self, to: int, origin: int) -> None:
        """Enable direct copies of two devices if possible; else CUDA copies through the host."""
        if (to, origin) not in self._peers:
            for index, peer in ((to, origin), (origin, to)):
                if self._driver.can_access_peer(index, peer):
                    with self._driver.relaxed():
                        self._driver.enable_peer(index, peer)
            self._peers |= {(to, origin), (origin, to)}


def adopt_array(driver: Driver, array: Any) -> Array:
    """Return a CuPy array over another library's device memory.

    DLPack comes first: the producer makes CuPy's current stream wait for its stream, without the
    host. With ``__cuda_array_interface__``, CuPy synchronises the stream that the producer names.

    Raises
    ------
    DeviceMismatchError
        If the array is in host memory.
    ArgumentTypeError
        If it has neither protocol, or its producer refuses.
    """
    if isinstance(array, driver.cupy.ndarray):
        return array
    try:
        if hasattr(array, "__dlpack_device__"):
            kind, index = array.__dlpack_device__()
            if int(kind) in _CUDA_DEVICE_TYPES:
                with driver.on_device(int(index)):
                    return driver.cupy.from_dlpack(array)
            raise DeviceMismatchError(
                f"expected an array in device memory, got a {type(array).__name__} of DLPack "
                f"device type {int(kind)}; copy it with nbrt.to"
            )
        if hasattr(array, "__cuda_array_interface__"):
            return driver.cupy.asarray(array)
    except (BufferError, TypeError, ValueError) as error:
        if isinstance(error, DeviceMismatchError):
            raise
        raise ArgumentTypeError(
            f"expected an array that CuPy can share, got a {type(array).__name__} that it cannot: "
            f"{error}"
        ) from error
    raise ArgumentTypeError(
        f"expected an array with __dlpack__ or __cuda_array_interface__, got a "
        f"{type(array).__name__}; convert it with nbrt.asarray"
    )


def _name(holder: int | None) -> str:
    return "the host" if holder is None else f"cuda:{holder}"


def _is_contiguous(array: Any, order: Literal["C", "F"]) -> bool:
    flags = array.flags
    return bool(flags.c_contiguous if order == "C" else flags.f_contiguous)


def _order_of(array: Any) -> Literal["C", "F"]:
    """Return the order in which to pack an array's values."""
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _shared_order(first: Any, second: Any) -> Literal["C", "F"] | None:
    """Return the memory order in which both arrays are contiguous; None if there is none."""
    if _is_contiguous(first, "C") and _is_contiguous(second, "C"):
        return "C"
    if _is_contiguous(first, "F") and _is_contiguous(second, "F"):
        return "F"
    return None


def _same_bytes(destination: Any, source: Any) -> bool:
    return (
        destination.dtype == source.dtype
        and destination.shape == source.shape
        and _shared_order(destination, source) is not None
    )
