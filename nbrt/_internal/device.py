"""`Device`: an immutable value that names one device, such as ``cuda:1``."""

from __future__ import annotations

import re

from nbrt._internal.checks import checked_int
from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["Device"]

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([0-9]+))?")
_MAX_INDEX = 2**16
_devices: dict[tuple[str, int], Device] = {}


class Device:
    """One device: a kind and an index.

    Equal devices are one hashable, picklable object. The constructor calls no driver; use of the
    device checks that it exists.

    Parameters
    ----------
    kind : str
        The backend's name, ``"cpu"`` or ``"cuda"``, or both parts at once, ``"cuda:1"``.
    index : int, optional
        Which device of that kind; 0 when neither argument names one.

    Raises
    ------
    ArgumentError
        If the text is not ``kind`` or ``kind:index``, or names the index twice.
    ArgumentTypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> Device("cpu:1")
    Device('cpu:1')
    >>> Device("cpu", 1) == Device("cpu:1"), Device("cpu").index
    (True, 0)
    """

    __slots__ = ("index", "kind")

    kind: str
    index: int

    def __new__(cls, kind: str, index: int | None = None) -> Device:
        if type(index) is int and type(kind) is str:  # no bool, which is equal to an int
            known = _devices.get((kind, index))
            if known is not None:
                return known
        if not isinstance(kind, str):
            raise ArgumentTypeError(
                f"expected a device name such as 'cuda:1', got {kind!r} of type "
                f"{type(kind).__name__}; pass a str or a Device"
            )
        match = _NAME.fullmatch(kind)
        if match is None:
            raise ArgumentError(
                f"expected a device name 'kind' or 'kind:index', such as 'cpu' or 'cuda:1', "
                f"got {kind!r}"
            )
        if index is not None and match[2] is not None:
            raise ArgumentError(
                f"expected the index once, got {kind!r} and index={index!r}; drop one of them"
            )
        key = (match[1], _checked_index(match[2] if index is None else index))
        device = _devices.get(key)
        if device is None:
            device = object.__new__(cls)
            object.__setattr__(device, "kind", key[0])
            object.__setattr__(device, "index", key[1])
            # One object per value: launches compare and hash devices, in C by identity.
            device = _devices.setdefault(key, device)
        return device

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"Device is an immutable value; make a new one instead of setting {name!r}"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Device is an immutable value; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[type[Device], tuple[str, int]]:
        return Device, (self.kind, self.index)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"Device('{self.kind}:{self.index}')"


def _checked_index(index: object) -> int:
    if index is None:
        return 0
    if isinstance(index, str):
        index = int(index)
    value = checked_int("a device index", index)
    if not 0 <= value < _MAX_INDEX:
        raise ArgumentError(f"expected a device index in [0, {_MAX_INDEX}), got {value}")
    return value
