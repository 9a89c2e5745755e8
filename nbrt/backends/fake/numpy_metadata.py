"""`ArrayMetadata`: what an array is without its values; `FakeMemory`: where it lies.

The modules of NumPy's rules work with these two. `FakeArray` adds the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nbrt.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import numpy as np

    from nbrt._internal.device import Device
    from nbrt.backends.fake.versions import OnVersion
    from nbrt.typing import HostArray

__all__ = ["ArrayFlags", "ArrayMetadata", "FakeMemory", "OnLaunch"]


OnLaunch: TypeAlias = "Callable[[Any, tuple[Any, ...], object], object]"
"""Takes a plan, the arguments of a launch, and an object that stands for their types and shapes.

Launches in turn with equal types and shapes have the identical object.
"""


class FakeMemory(Protocol):
    """The memory of a fake device, or of the host beside it."""

    @property
    def device(self) -> Device:
        """The device, with its real name."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether it is host memory, whose arrays mix with those of NumPy."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether the fake device still exists."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether no device of an inner block is in the place of the fake device."""
        ...

    @property
    def on_launch(self) -> OnLaunch | None:
        """The function to call after each launch on the device."""
        ...

    @property
    def on_version(self) -> OnVersion | None:
        """The function to call with each kernel that a real device would compile."""
        ...

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str = "C") -> Any:
        """Return a new `FakeArray` for the result of an expression."""
        ...

    def read(self, array: Any) -> HostArray:
        """Return the values that the host reads, or raise FakeReadError."""
        ...

    def to_host(self, array: Any) -> Any:
        """Return a new fake array of host memory after a copy of an array of this memory."""
        ...

    def from_host(self, array: Any, values: Any) -> None:
        """Copy a host array, real or fake, into an array of this memory."""
        ...


class ArrayFlags:
    """The flags of a fake array, as `numpy.ndarray.flags`."""

    __slots__ = ("_array", "_flags", "owndata")

    def __init__(self, array: ArrayMetadata) -> None:
        self._array = array
        self._flags = array.layout.flags
        self.owndata = array.base is None

    @property
    def c_contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return self._flags.c_contiguous

    @property
    def f_contiguous(self) -> bool:
        """Whether the elements are contiguous in Fortran order."""
        return self._flags.f_contiguous

    @property
    def contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return self._flags.c_contiguous

    @property
    def fortran(self) -> bool:
        """Whether the elements are contiguous in Fortran order only."""
        return self._flags.fnc

    fnc = fortran

    @property
    def forc(self) -> bool:
        """Whether the elements are contiguous in C or Fortran order."""
        return self._flags.forc

    @property
    def writeable(self) -> bool:
        """Whether the array can be written."""
        return self._flags.writeable

    @writeable.setter
    def writeable(self, value: bool) -> None:
        self["WRITEABLE"] = value

    @property
    def aligned(self) -> bool:
        """Whether the elements are aligned as their dtype demands."""
        return self._flags.aligned

    @property
    def behaved(self) -> bool:
        """Whether the array is aligned and writeable."""
        return self._flags.behaved

    @property
    def carray(self) -> bool:
        """Whether the array is aligned, writeable and contiguous in C order."""
        return self._flags.carray

    @property
    def farray(self) -> bool:
        """Whether the array is aligned, writeable and contiguous in Fortran order only."""
        return self._flags.farray

    def __getitem__(self, key: Any) -> bool:
        return self.owndata if key in ("OWNDATA", "O") else self._flags[key]

    def __setitem__(self, key: Any, value: bool) -> None:
        self._flags[key] = value
        self._array.known_form = None

    def __repr__(self) -> str:
        return str(self._flags).replace(
            f"OWNDATA : {self._flags.owndata}", f"OWNDATA : {self.owndata}"
        )


class ArrayMetadata:
    """The shape, dtype, strides, device and identity of storage of an array without values.

    Parameters
    ----------
    layout : numpy.ndarray
        An array over addresses without memory. Only operations that make views may be applied to
        it: the process ends if an element is touched.
    memory : FakeMemory
        The memory that the array lies in.
    handle : object
        Keeps the allocation alive.
    base : ArrayMetadata, optional
        The array that this one is a view of.

    Attributes
    ----------
    known_form : tuple or None
        The result of `form`, once it is known.
    is_scalar : bool
        NumPy's result would be a scalar; it has no axes.
    """

    __slots__ = ("__weakref__", "base", "handle", "is_scalar", "known_form", "layout", "memory")

    def __init__(
        self,
        layout: HostArray,
        memory: FakeMemory,
        handle: object,
        base: ArrayMetadata | None = None,
    ) -> None:
        self.layout = layout
        self.memory = memory
        self.handle = handle
        self.base = base
        self.known_form: tuple[Any, ...] | None = None
        self.is_scalar = False

    def form(self) -> tuple[Any, ...]:
        """Return what launches compare of an array: it is equal for arrays that a plan takes alike.

        Launches read `known_form` first: a launch takes about a microsecond.
        """
        layout = self.layout
        # Of two arrays of the host beside a CPU device, one may lie in memory of a device.
        place = self.memory, self.handle is None
        self.known_form = form = (*place, layout.dtype, layout.shape, layout.flags.num)
        return form

    def check_active(self) -> None:
        """Raise DeviceError if the fake device of the array exists no longer."""
        if not self.memory.is_active:
            raise DeviceError(
                f"expected an array of a fake device that exists, got {self!r}, whose nbrt.fake "
                f"block has ended; use fake arrays inside of their block"
            )

    def view_of(self, layout: HostArray) -> Self:
        """Return a view of this array with another layout over the same storage."""
        self.check_active()
        base = self if self.base is None else self.base
        return type(self)(layout, self.memory, self.handle, base)

    def as_owner(self, layout: HostArray) -> Self:
        """Return this array with another layout, as a result that is no view."""
        return type(self)(layout, self.memory, self.handle)

    # -- attributes of ndarray ---------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device that holds the array."""
        return self.memory.device

    @property
    def address(self) -> int:
        """Address of the first element; there is no memory at it."""
        # `layout.ctypes` imports ctypes for each array.
        return int(self.layout.__array_interface__["data"][0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        shape: tuple[int, ...] = self.layout.shape
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis."""
        strides: tuple[int, ...] = self.layout.strides
        return strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.layout.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.layout.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.layout.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.layout.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.layout.nbytes

    @property
    def flags(self) -> ArrayFlags:
        """Contiguity, writeability and ownership."""
        return ArrayFlags(self)

    @property
    def T(self) -> Self:  # noqa: N802 (NumPy's name)
        """View with the axes in reverse order."""
        return self.view_of(self.layout.T)

    @property
    def mT(self) -> Self:  # noqa: N802 (NumPy's name)
        """View with the last two axes exchanged."""
        return self.view_of(self.layout.mT)

    def __len__(self) -> int:
        return len(self.layout)

    def __repr__(self) -> str:
        device = "host" if self.memory.is_host else str(self.memory.device)
        return f"FakeArray(shape={self.shape}, dtype={self.dtype}, device={device!r})"

    __str__ = __repr__
