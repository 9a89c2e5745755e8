"""`CallArguments`: what the arguments of a captured function decide, and the arrays among them."""

from __future__ import annotations

import dataclasses
import struct
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentTypeError
from nbrt.graphs.buffers import address_of, base_of
from nbrt.graphs.operations import view

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from nbrt.backends.interface import DeviceInterface

__all__ = ["CallArguments", "Returned"]

_MAX_DEPTH = 32
_PLAIN = frozenset({type(None), bool, int, str, bytes, type(Ellipsis), range, slice})
_pack = struct.Struct("=d").pack
_pack_complex = struct.Struct("=dd").pack

_WRITEABLE_ALIGNED = 0x400 | 0x100
"""The flags of a NumPy array that kernels are compiled for."""


class CallArguments:
    """The arguments of one call of a captured function.

    Calls with equal keys share a graph. Containers are looked into: numbers count by type and bits,
    arrays by everything but their address and values, other objects by identity or, if their class
    defines equality and a hash, by value.

    Parameters
    ----------
    arguments : mapping of str to object
        By parameter.
    interface : DeviceInterface
        The backend that the graph runs on.

    Attributes
    ----------
    key : hashable
        As described.
    arrays : dict of str to array
        The arrays of the backend by the expression that finds them, such as ``xs[0]``.
    fixed : set of str
        Those that share memory with another one, which belong to the key with their addresses.
    objects : list of object
        The objects that the key refers to by identity.

    Raises
    ------
    ArgumentTypeError
        If the key of an argument could not notice a change of its value.
    """

    def __init__(self, arguments: Mapping[str, Any], interface: DeviceInterface) -> None:
        self.arguments = arguments
        self.arrays: dict[str, Any] = {}
        self.fixed: set[str] = set()
        self.objects: list[Any] = []
        self._interface = interface
        kinds = tuple([(name, self._kind(name, each, 0)) for name, each in arguments.items()])
        self.key: Hashable = (kinds, self._sharing()) if len(self.arrays) > 1 else kinds

    def _kind(self, name: str, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if kind in _PLAIN and kind is not slice:
            return kind, value
        if kind is np.ndarray:
            return self._array(name, value)
        if isinstance(value, np.generic):
            return kind, value.dtype, value.tobytes()
        if isinstance(value, float):
            return kind, _pack(value)
        if isinstance(value, complex):
            return kind, _pack_complex(value.real, value.imag)
        if self._interface.index_of(value) is not None:
            return self._array(name, value)
        inner = _members(name, value)
        if inner is None:
            return self._object(name, value)
        if depth == _MAX_DEPTH:
            raise ArgumentTypeError(
                f"expected containers nested at most {_MAX_DEPTH} deep as an argument of a "
                f"captured function, got more in {name}"
            )
        parts = [(label, self._kind(path, each, depth + 1)) for label, path, each in inner]
        return kind, frozenset(parts) if isinstance(value, frozenset) else tuple(parts)

    def _array(self, name: str, array: Any) -> Hashable:
        index = self._interface.index_of(array)
        if index is None:  # of another backend: its values or its address stay those of the capture
            return self._same(array)
        self.arrays[name] = array
        flags = getattr(array.flags, "num", 0) & _WRITEABLE_ALIGNED
        return type(array), array.shape, array.dtype, array.strides, flags, index

    def _object(self, name: str, value: Any) -> Hashable:
        kind: Any = type(value)
        is_array = any(hasattr(kind, each) for each in ("__array__", "__dlpack__"))
        if is_array or kind.__eq__ is object.__eq__:
            return self._same(value)
        try:
            hash(value)
        except TypeError:
            raise ArgumentTypeError(
                f"expected arrays, numbers, strings, tuples, lists, dicts and hashable objects as "
                f"arguments of a captured function, got {name} of type {kind.__name__}, whose "
                f"changes a graph cannot notice; pass its parts, or a tuple of them"
            ) from None
        return kind, value

    def _same(self, value: Any) -> Hashable:
        self.objects.append(value)
        return _Identity(value)

    def _sharing(self) -> Hashable:
        """Return which arrays are one object, or share memory at which addresses."""
        groups: dict[int, list[str]] = {}
        for name, array in self.arrays.items():
            groups.setdefault(_memory_of(array, self._interface), []).append(name)
        if len(groups) == len(self.arrays):
            return ()
        found: list[Hashable] = []
        for names in groups.values():
            if len({id(self.arrays[name]) for name in names}) > 1:
                self.fixed.update(names)
                found.append(tuple((name, address_of(self.arrays[name])) for name in names))
            elif len(names) > 1:
                found.append(tuple(names))
        return tuple(found)


class _Identity:
    """An object as a part of a key: equal to itself only. It does not keep the object alive."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._value = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, _Identity) or self._hash != other._hash:
            return False
        value = self._value()
        return value is not None and value is other._value()


def _memory_of(array: Any, interface: DeviceInterface) -> int:
    """Return the identity of what holds the memory of an array: an allocation, or an array."""
    owner: object = interface.owner_of(array)
    return id(base_of(array) if owner is None else owner)


def _members(name: str, value: Any) -> list[tuple[Hashable, str, Any]] | None:
    """Return the parts of a container: a label for the key, the expression, and the part."""
    if isinstance(value, (tuple, list, types.SimpleNamespace)) or type(value) is slice:
        if isinstance(value, types.SimpleNamespace):
            return [(each, f"{name}.{each}", part) for each, part in vars(value).items()]
        items = (value.start, value.stop, value.step) if type(value) is slice else value
        return [(index, f"{name}[{index}]", part) for index, part in enumerate(items)]
    if isinstance(value, dict):
        return [((type(key), key), f"{name}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, frozenset):
        return [((), name, part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if hasattr(value, each.name)]
        return [(each, f"{name}.{each}", getattr(value, each)) for each in names]
    return None


class Returned:
    """The result of a captured function, with the arguments of each call in their places.

    Parameters
    ----------
    result : object
        What the captured call returned.
    call : CallArguments
        The arguments of that call.
    interface : DeviceInterface
        The backend of its arrays.
    """

    def __init__(self, result: Any, call: CallArguments, interface: DeviceInterface) -> None:
        self._result = result
        self._interface = interface
        self._arrays = {id(array): name for name, array in call.arrays.items()}
        self._memory = {
            _memory_of(array, interface): name for name, array in reversed(call.arrays.items())
        }
        self._names = {id(value): name for name, value in call.arguments.items()}
        self._make = None if result is None else self._maker(result, call, 0)
        del self._arrays, self._memory, self._names

    def of(self, call: CallArguments) -> Any:
        """Return the result for the arguments of a call."""
        return self._result if self._make is None else self._make(call)

    def _maker(
        self, value: Any, call: CallArguments, depth: int
    ) -> Callable[[CallArguments], Any] | None:
        """Return a function that makes a value from the arguments; None if it uses none."""
        array = self._arrays.get(id(value))
        if array is not None:
            return lambda given: given.arrays[array]
        name = self._names.get(id(value))
        if name is not None and type(value) not in _PLAIN:
            return lambda given: given.arguments[name]
        if self._interface.index_of(value) is not None and hasattr(value, "strides"):
            return self._view_maker(value, call)
        if type(value) is dict and depth < _MAX_DEPTH:
            makers = {key: self._maker(each, call, depth + 1) for key, each in value.items()}
            if not any(makers.values()):
                return None
            return lambda given: {
                key: value[key] if make is None else make(given) for key, make in makers.items()
            }
        if isinstance(value, (tuple, list)) and depth < _MAX_DEPTH:
            return self._sequence_maker(value, call, depth)
        return None

    def _sequence_maker(
        self, value: Any, call: CallArguments, depth: int
    ) -> Callable[[CallArguments], Any] | None:
        makers = [self._maker(each, call, depth + 1) for each in value]
        if not any(makers):
            return None
        kind: Any = type(value)
        gather = getattr(kind, "_make", kind)

        def make(given: CallArguments) -> Any:
            pairs = zip(value, makers, strict=True)
            return gather([each if inner is None else inner(given) for each, inner in pairs])

        return make

    def _view_maker(self, value: Any, call: CallArguments) -> Callable[[CallArguments], Any] | None:
        """Return a function that makes a view of an argument; None for other memory."""
        name = self._memory.get(_memory_of(value, self._interface))
        if name is None:
            return None
        shape, dtype, strides = value.shape, value.dtype, value.strides
        offset = address_of(value) - address_of(call.arrays[name])
        return lambda given: view(given.arrays[name], shape, dtype, offset, strides)
