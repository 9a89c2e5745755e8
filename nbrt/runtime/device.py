"""Devices by name: the current one, the existing ones, and their properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt import config
from nbrt._internal import scopes
from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.backends.registry import get_interface_for_device
from nbrt.errors import ArgumentTypeError, BackendUnavailableError, UnknownDeviceError

if TYPE_CHECKING:
    from nbrt.backends.interface import DeviceInterface, DeviceProperties
    from nbrt.config import Settings
    from nbrt.typing import DeviceLike

__all__ = [
    "can_access_peer",
    "current_device",
    "default_device",
    "device_count",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "interface_of",
    "is_available",
    "resolve_device",
    "set_device",
]

_checked: dict[object, tuple[Device, DeviceInterface]] = {}
_checked_revision = -1
_default: tuple[Settings, int, Device] | None = None


def default_device() -> Device:
    """Return the device that is current outside guards.

    ``NBRT_DEVICE`` if set, else ``cuda:0`` if a CUDA device works, else ``cpu:0``.

    Raises
    ------
    UnknownDeviceError
        If ``NBRT_DEVICE`` names a device that does not exist.
    BackendUnavailableError
        If it names one whose backend cannot be used here.
    """
    global _default
    # The same settings and backends give the same device.
    if _default is None or _default[0] is not config.in_force or _default[1] != registry.revision:
        chosen = config.settings()
        if chosen.device is not None:
            device = resolve_device(chosen.device)
        else:
            kinds = registry.DEFAULT_KINDS
            device = Device(next(filter(_works, kinds), kinds[-1]), 0)
        _default = (chosen, registry.revision, device)
    return _default[2]


def _works(kind: str) -> bool:
    try:
        return get_interface_for_device(kind).is_available()
    except (BackendUnavailableError, UnknownDeviceError):
        return False


def current_device() -> Device:
    """Return the current device of this thread or task.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.device("cpu:0"):
    ...     nbrt.current_device()
    Device('cpu:0')
    """
    return scopes.current().device or default_device()


def set_device(device: DeviceLike) -> None:
    """Make `device` current in this thread or task, until the enclosing guard ends.

    None and -1 change nothing. Prefer the guard ``with nbrt.device(...)``.
    """
    if device is None or device == -1:
        return
    chosen, interface = lookup(device)
    if interface.capabilities.driver_state and interface.lazy.is_ready:
        interface.exchange_device(chosen.index)
    scopes.replace(chosen, None)


def resolve_device(device: DeviceLike) -> Device:
    """Return the `Device` of a name, an index of the current kind, a Device or None.

    Raises
    ------
    UnknownDeviceError
        If there is no such device.
    BackendUnavailableError
        If its backend is unavailable here; the text gives the reason.
    ArgumentTypeError
        If `device` has another type.
    """
    return lookup(device)[0]


def lookup(device: DeviceLike) -> tuple[Device, DeviceInterface]:
    """Return an existing device and its backend."""
    global _checked_revision
    if device is None:
        device = current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        device = Device(current_device().kind, device)
    if _checked_revision != registry.revision:
        _checked.clear()
        _checked_revision = registry.revision
    try:
        known = _checked.get(device)
    except TypeError:
        known = None
    return _check(device) if known is None else known


def _check(device: object) -> tuple[Device, DeviceInterface]:
    if isinstance(device, str):
        wanted = Device(device)
    elif isinstance(device, Device):
        wanted = device
    else:
        raise ArgumentTypeError(
            f"expected a device (a name such as 'cuda:1', an index, a Device or None), "
            f"got {device!r} of type {type(device).__name__}"
        )
    interface = get_interface_for_device(wanted)
    reason = interface.unavailable_reason()
    if reason is not None:
        raise BackendUnavailableError(f"expected {wanted} to be usable, got: {reason}")
    count = interface.device_count()
    if wanted.index >= count:
        hint = interface.capabilities.more_devices
        more = f"; {hint}" if hint else ""
        raise UnknownDeviceError(
            f"expected one of the {count} {wanted.kind} device(s), 0 to {count - 1}, got "
            f"{wanted}{more}"
        )
    _checked[device] = wanted, interface
    return wanted, interface


def interface_of(device: DeviceLike = None) -> DeviceInterface:
    """Return the initialised backend of a device."""
    interface = lookup(device)[1]
    if not interface.lazy.is_ready:
        interface.lazy.ensure()
    return interface


def device_count(kind: str | None = None) -> int:
    """Return the number of devices of a kind, without initialisation.

    Parameters
    ----------
    kind : str, optional
        ``"cpu"``, ``"cuda"`` or another backend; the current device's kind by default.
    """
    return get_interface_for_device(kind or current_device().kind).device_count()


def is_available(kind: str | None = None) -> bool:
    """Return whether a kind of device is usable here, without initialisation.

    Parameters
    ----------
    kind : str, optional
        ``"cpu"``, ``"cuda"`` or another backend; the current device's kind by default.
    """
    return get_interface_for_device(kind or current_device().kind).is_available()


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Return the name, memory, processors, limits and other properties of a device."""
    chosen, interface = lookup(device)
    return interface.get_device_properties(chosen.index)


def get_device_name(device: DeviceLike = None) -> str:
    """Return the product name of the device."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int] | None:
    """Return the compute capability (major, minor); None for kinds without one."""
    chosen, interface = lookup(device)
    return interface.get_compute_capability(chosen.index)


def can_access_peer(device: DeviceLike, peer: DeviceLike) -> bool:
    """Return whether `device` can read the memory of `peer` without a copy through the host."""
    first, interface = lookup(device)
    second = resolve_device(peer)
    return first.kind == second.kind and interface.can_access_peer(first.index, second.index)
