"""Other libraries' device arrays, by protocol and without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentTypeError, DeviceMismatchError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.typing import Array

__all__ = ["adopt_array"]

# dlpack.h: kDLCUDA, kDLCUDAManaged
_CUDA_DEVICE_TYPES = (2, 13)


def adopt_array(driver: Driver, array: Any) -> Array:
    """Return a CuPy array over another library's device memory.

    DLPack is asked first: it hands CuPy's current stream to the producer, which makes that stream
    wait for its own, so the host does not. ``__cuda_array_interface__`` makes CuPy synchronise the
    stream that the producer names.

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
