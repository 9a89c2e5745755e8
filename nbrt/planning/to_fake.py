"""`to_fake`: arrays, and objects that hold some, on fake devices, by metadata only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.backends.fake.array import FakeArray
from nbrt.distributed.dtensor import DTensor
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.graphs.buffers import address_of, base_of, bounds_of
from nbrt.graphs.operations import view
from nbrt.runtime.creation import empty
from nbrt.runtime.device import current_device, resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt.typing import DeviceLike

__all__ = ["to_fake"]


def to_fake(obj: Any, device: DeviceLike = None) -> Any:
    """Return an object with fake arrays in the place of its arrays; no value is read or copied.

    Parameters
    ----------
    obj : object
        An array, a `DTensor`, an object of any class with ``__tensor_flatten__`` and
        ``__tensor_unflatten__`` (torch's contract), or tuples, lists and dicts of such objects.
        Other objects are returned themselves.
    device : Device, str, int or None
        The fake device of host arrays; the current device by default. Arrays of a CUDA device stay
        on the device of their number, and tensors on that of their mesh.

    Returns
    -------
    fake : object
        An object of the same class. Arrays have the same shape, dtype and strides, and arrays that
        share memory share it again.

    Raises
    ------
    ArgumentError
        If the device is not fake.
    ArgumentTypeError
        If an object flattens into something that is no array.

    Examples
    --------
    >>> import numpy as np
    >>> import nbrt
    >>> weights = {"w": np.ones((1000, 1000)), "names": ["w"]}
    >>> with nbrt.fake("cuda"):
    ...     nbrt.to_fake(weights)
    {'w': FakeArray(shape=(1000, 1000), dtype=float64, device='cuda:0'), 'names': ['w']}
    """
    chosen = None if device is None else _checked(resolve_device(device))
    return _Converter(chosen).convert(obj)


class _Converter:
    """The conversion of one object, in which each array and each storage is converted once."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._known: dict[int, tuple[Any, Any]] = {}
        self._storages: dict[tuple[int, Device], FakeArray] = {}

    def convert(self, obj: Any) -> Any:
        """Return an object with fake arrays."""
        known = self._known.get(id(obj))
        if known is not None:
            return known[1]
        made = self._converted(obj)
        if made is not obj:
            self._known[id(obj)] = obj, made  # which keeps the id taken
        return made

    def _converted(self, obj: Any) -> Any:
        if isinstance(obj, FakeArray):
            obj.check_active()
            return obj
        if isinstance(obj, dict):
            return type(obj)((key, self.convert(value)) for key, value in obj.items())
        if isinstance(obj, (list, tuple)):
            items = [self.convert(each) for each in obj]
            return obj._make(items) if hasattr(obj, "_make") else type(obj)(items)
        if hasattr(obj, "__tensor_flatten__"):
            return self._rebuilt(obj)
        if isinstance(obj, type) or not _is_array(obj):
            return obj
        return self._array(obj, self._device_of(obj))

    def _rebuilt(self, obj: Any) -> Any:
        """Take an object apart into its arrays, and make it again of fake ones."""
        names, context = obj.__tensor_flatten__()
        arrays = {}
        for name in names:
            inner = getattr(obj, name)
            if isinstance(obj, DTensor):
                arrays[name] = self._part(inner, obj)
                continue
            arrays[name] = self.convert(inner)
            if arrays[name] is inner and not isinstance(inner, FakeArray):
                raise ArgumentTypeError(
                    f"expected arrays as what {type(obj).__name__} flattens into, got {name} = "
                    f"{inner!r}"
                )
        shape, strides = getattr(obj, "shape", None), getattr(obj, "strides", None)
        return type(obj).__tensor_unflatten__(arrays, context, shape, strides)

    def _part(self, local: Any, tensor: DTensor) -> Any:
        if isinstance(local, FakeArray):
            return self.convert(local)
        return self._array(local, _checked(tensor.device_mesh.device))

    def _device_of(self, array: Any) -> Device:
        index = getattr(getattr(array, "device", None), "id", None)
        if not isinstance(array, np.ndarray) and index is not None:
            return _checked(Device("cuda", int(index)))
        return _checked(current_device()) if self._device is None else self._device

    def _array(self, array: Any, device: Device) -> FakeArray:
        """Return a fake array as a view of the fake memory for the array's whole memory."""
        base = base_of(array)
        low, high = bounds_of(base)
        storage = self._storages.get((low, device))
        if storage is None or storage.nbytes < high - low:
            storage = empty(high - low, np.uint8, stream=current_stream(device))
            self._storages[low, device] = storage
            self._known[id(base)] = self._known.get(id(base), (base, base))  # keeps `low` taken
        offset = address_of(array) - low
        found: FakeArray = view(storage, array.shape, array.dtype, offset, array.strides)
        return found


def _is_array(obj: Any) -> bool:
    if isinstance(obj, np.ndarray):
        return not obj.dtype.hasobject
    return hasattr(obj, "__cuda_array_interface__")


def _checked(device: Device) -> Device:
    """Return a device that is fake."""
    if registry.get_interface_for_device(device).capabilities.computes:
        raise ArgumentError(
            f"expected a fake device, got {device}; enter nbrt.fake({device.kind!r}), or pass "
            f"device= for the fake device of host arrays"
        )
    return device
