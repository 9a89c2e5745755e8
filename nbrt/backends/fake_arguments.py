"""`refuse_fake_array`: real devices take no array of a fake one."""

from __future__ import annotations

from typing import Any

from nbrt._internal.device import Device
from nbrt.errors import DeviceMismatchError

__all__ = ["refuse_fake_array"]


def refuse_fake_array(argument: object, name: str, kind: str) -> None:
    """Raise DeviceMismatchError if an argument of a launch is an array of a fake device.

    Parameters
    ----------
    argument : object
        The argument, of a type that the compiler does not know.
    name : str
        The argument in messages.
    kind : str
        The kind of the real device.
    """
    device: Any = getattr(argument, "device", None)
    if not isinstance(device, Device):
        return
    state = "" if argument.memory.is_active else ", whose nbrt.fake block has ended"  # type: ignore[attr-defined]  # arrays with a `Device` are fake
    raise DeviceMismatchError(
        f"expected {name} on a real {kind} device, where the kernel runs, got {argument!r} of the "
        f"fake {device}{state}; launch on a stream of the fake device, or pass a real array"
    )
