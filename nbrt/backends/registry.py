"""Backends by name, loaded on first use, with registration and entry points for more."""

from __future__ import annotations

import difflib
import importlib.metadata
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from nbrt._internal.device import Device
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.interface import DeviceInterface

__all__ = [
    "DEFAULT_KINDS",
    "ENTRY_POINT_GROUP",
    "describe_unavailable",
    "get_interface_for_device",
    "known_backends",
    "on_removed",
    "on_substituted",
    "ready_interfaces",
    "register_interface_for_device",
    "revision",
    "set_aside",
    "substitute_interface",
    "substitutes",
    "unregister_interface_for_device",
]

ENTRY_POINT_GROUP = "nbrt.backends"

DEFAULT_KINDS = ("cuda", "cpu")
"""The kinds of device among which the first usable one has the default device."""


class _SupportsKind(Protocol):
    @property
    def kind(self) -> str: ...


def _from_entry_point(entry: importlib.metadata.EntryPoint) -> Callable[[], DeviceInterface]:
    def load() -> DeviceInterface:
        target = entry.load()
        interface: DeviceInterface = target() if callable(target) else target
        return interface

    return load


_lock = threading.RLock()
_factories: dict[str, Callable[[], DeviceInterface]] = {
    kind: _from_entry_point(importlib.metadata.EntryPoint(kind, backend, ENTRY_POINT_GROUP))
    for kind, backend in {
        "cpu": "nbrt.backends.cpu.backend:CpuInterface",
        "cuda": "nbrt.backends.cuda.backend:CudaInterface",
    }.items()
}
_loaded: dict[str, DeviceInterface] = {}
_entry_points_read = False
revision = 0
"""A number that changes when a backend is added or removed, for caches."""

_removed: list[Callable[[str], None]] = []
_SetAside: TypeAlias = "Callable[[str], Callable[[], None]]"
_Key = TypeVar("_Key")
_substituted: list[_SetAside] = []


def register_interface_for_device(
    name: str, interface: DeviceInterface | Callable[[], DeviceInterface], *, replace: bool = False
) -> None:
    """Add a kind of device.

    Parameters
    ----------
    name : str
        The kind; devices are then named ``name:index``.
    interface : DeviceInterface or callable
        The backend, or a function without arguments that creates it on first use.
    replace : bool
        Replace a registered backend.

    Raises
    ------
    ArgumentError
        If the name is not an identifier, or is registered and `replace` is False.
    ArgumentTypeError
        If `interface` is neither.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(f"expected a backend name that is an identifier, got {name!r}")
    is_interface = hasattr(interface, "device_count") and hasattr(interface, "lazy")
    if not is_interface and not callable(interface):
        raise ArgumentTypeError(
            f"expected a DeviceInterface or a function that makes one, got {interface!r}"
        )
    with _lock:
        if name in _all_factories() and not replace:
            raise ArgumentError(
                f"expected a new backend name, got {name!r}, which is registered; "
                f"pass replace=True to take its place"
            )
        _forget(name)
        _factories[name] = interface if not is_interface else lambda: interface  # type: ignore[assignment, return-value]  # checked above


def unregister_interface_for_device(name: str) -> None:
    """Remove a kind of device."""
    with _lock:
        if _factories.pop(name, None) is None:
            raise UnknownDeviceError(_unknown(name))
        _forget(name)


def on_removed(function: Callable[[str], None]) -> None:
    """Call ``function(kind)`` when a loaded backend is removed or replaced."""
    _removed.append(function)


def on_substituted(function: _SetAside) -> None:
    """Call ``function(kind)`` when another backend takes the place of a kind for a while.

    The function sets the state of the kind's devices aside and returns a function that restores it.
    """
    _substituted.append(function)


def set_aside(table: dict[_Key, Any], kind_of: Callable[[_Key], str]) -> _SetAside:
    """Return a function for `on_substituted` that empties a table of state by device.

    Parameters
    ----------
    table : dict
        The state.
    kind_of : callable
        Returns the kind of device of a key.
    """

    def take(kind: str) -> dict[_Key, Any]:
        return {key: table.pop(key) for key in list(table) if kind_of(key) == kind}

    def begin(kind: str) -> Callable[[], None]:
        aside = take(kind)

        def restore() -> None:
            take(kind)
            table.update(aside)

        return restore

    return begin


def substitute_interface(name: str, interface: DeviceInterface) -> Callable[[], None]:
    """Put a backend in the place of a kind's, for the whole process.

    Returns
    -------
    restore : callable
        Ends the substitution: the kind has its backend and the state of its devices again.
        Substitutions of one kind end in the reverse order of their beginnings.
    """
    interface.is_substitute = True
    with _lock:
        factory, loaded = _all_factories().get(name), _loaded.get(name)
        restore_states = [function(name) for function in _substituted]
        _put(name, lambda: interface, interface)

    def restore() -> None:
        with _lock:
            for restore_state in reversed(restore_states):
                restore_state()
            _put(name, factory, loaded)

    return restore


def substitutes() -> dict[str, DeviceInterface]:
    """Return the backends that are in the place of others, by kind."""
    with _lock:
        return {name: each for name, each in _loaded.items() if each.is_substitute}


def _put(
    name: str, factory: Callable[[], DeviceInterface] | None, loaded: DeviceInterface | None
) -> None:
    global revision
    revision += 1
    for table, value in ((_factories, factory), (_loaded, loaded)):
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value  # type: ignore[assignment]  # each table with its own type


def _forget(name: str) -> None:
    global revision
    revision += 1
    if _loaded.pop(name, None) is not None:
        for function in _removed:
            function(name)


def get_interface_for_device(device: str | Device | _SupportsKind) -> DeviceInterface:
    """Return the backend of a kind, of an indexed name such as ``"cuda:1"``, or of a device.

    Raises
    ------
    UnknownDeviceError
        If there is no such backend. The text names the known ones, the nearest match, and why
        others are unavailable.
    BackendUnavailableError
        If the backend is known but its code cannot be loaded.
    """
    name = device if isinstance(device, str) else getattr(device, "kind", None)
    if isinstance(name, str) and ":" in name:
        name = Device(name).kind
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"expected a device name or a Device, got {device!r} of type {type(device).__name__}"
        )
    interface = _loaded.get(name)
    return _load(name) if interface is None else interface


def known_backends() -> tuple[str, ...]:
    """Return the sorted names of all backends."""
    with _lock:
        return tuple(sorted(_all_factories()))


def ready_interfaces() -> tuple[DeviceInterface, ...]:
    """Return the initialised backends; only their arrays can exist."""
    return tuple(interface for interface in _loaded.values() if interface.lazy.is_ready)


def describe_unavailable() -> dict[str, str]:
    """Return the reason of every backend that is unavailable here."""
    reasons = {}
    for name in known_backends():
        try:
            reason = get_interface_for_device(name).unavailable_reason()
        except BackendUnavailableError as error:
            reason = str(error)
        if reason is not None:
            reasons[name] = reason
    return reasons


def _load(name: str) -> DeviceInterface:
    with _lock:
        if name in _loaded:
            return _loaded[name]
        factory = _all_factories().get(name)
        if factory is None:
            raise UnknownDeviceError(_unknown(name))
        try:
            interface = factory()
        except Exception as error:
            raise BackendUnavailableError(
                f"expected the backend {name!r} to load, got {type(error).__name__}: {error}"
            ) from error
        _loaded[name] = interface
        return interface


def _all_factories() -> dict[str, Callable[[], DeviceInterface]]:
    global _entry_points_read
    if not _entry_points_read:
        _entry_points_read = True
        for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            _factories.setdefault(entry.name, _from_entry_point(entry))
    return _factories


def _unknown(name: str) -> str:
    known = known_backends()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    lines = [f"expected a device of a known kind ({', '.join(known)}), got {name!r}{hint}"]
    lines += [f"  {kind} is unavailable: {why}" for kind, why in describe_unavailable().items()]
    return "\n".join(lines)
