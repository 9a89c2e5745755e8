"""Public protocols and aliases: what nbrt accepts and what it promises about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from nbrt._internal.device import Device

    Array: TypeAlias = Any
    """An array of the device's own library: `numpy.ndarray` on cpu, `cupy.ndarray` on cuda."""

    ArrayLike: TypeAlias = npt.ArrayLike
    DTypeLike: TypeAlias = npt.DTypeLike
    HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    DeviceLike: TypeAlias = Device | str | int | None
    """A Device, a name such as ``"cuda:1"``, an index of the current kind, or None: the current."""

    CopyMode: TypeAlias = bool | Literal["host_data"] | None
    """When `nbrt.asarray` and `nbrt.to` copy.

    True: always. ``"host_data"``, the default: host data always, an array of a device only if its
    device or dtype changes, so that CPU devices copy where CUDA must. None: only if the device or
    dtype changes. False: never; an `ArgumentError` if a copy is needed. None and False mean what
    they mean in NumPy.
    """

    Shape: TypeAlias = int | tuple[int, ...]
    Dim3: TypeAlias = tuple[int, int, int]

__all__ = ["SupportsCudaArrayInterface", "SupportsCudaStream", "SupportsDLPack"]


@runtime_checkable
class SupportsCudaStream(Protocol):
    """Any object with the CUDA stream protocol: CuPy, torch, RMM, cuda.core, numba-cuda, nbrt."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (version, address of the stream); version 0 is the one nbrt knows."""
        ...


@runtime_checkable
class SupportsDLPack(Protocol):
    """Any array that can be shared without a copy through DLPack."""

    def __dlpack__(self, **options: Any) -> Any:
        """Return a capsule over the array's memory."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (DLPack device type, device index)."""
        ...


@runtime_checkable
class SupportsCudaArrayInterface(Protocol):
    """Any array that describes its device memory with ``__cuda_array_interface__``."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Shape, type string, data pointer, strides, version and stream."""
        ...
