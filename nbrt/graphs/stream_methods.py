"""Functions by which a capture, and captured code, handle the streams of a type of device.

A backend registers its own under its name; without them those of nbrt's streams are used, which
work for every backend.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from nbrt.backends import registry
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.guard import StreamGuard, set_stream
from nbrt.runtime.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt.typing import DeviceLike

__all__ = ["StreamMethod", "register_stream_method", "stream_method"]

StreamMethod: TypeAlias = Literal[
    "current_stream", "create_stream_context", "set_stream", "set_stream_by_id"
]

_registered: dict[str, dict[StreamMethod, Callable[..., Any]]] = {}
_lock = threading.Lock()


def register_stream_method(
    device_type: str, methods: Mapping[StreamMethod, Callable[..., Any]]
) -> None:
    """Register how captures handle the streams of a type of device.

    Parameters
    ----------
    device_type : str
        The name of the backend, such as ``"cuda"``; it need not be registered yet.
    methods : mapping of str to callable
        ``"current_stream"``: takes a device, returns its current `Stream`.
        ``"create_stream_context"``: takes a stream, returns a context manager in which it is
        current. ``"set_stream"``: takes a stream, and makes it current. ``"set_stream_by_id"``: the
        same for the id of a stream. Those that are left out stay as they were.

    Raises
    ------
    ArgumentError
        If a name is unknown.
    ArgumentTypeError
        If `device_type` is no str, or a method is not callable.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.graphs.register_stream_method("cpu", {"current_stream": nbrt.current_stream})
    """
    if not isinstance(device_type, str):
        raise ArgumentTypeError(f"expected the name of a type of device, got {device_type!r}")
    for name, method in methods.items():
        if name not in get_args(StreamMethod):
            known = ", ".join(get_args(StreamMethod))
            raise ArgumentError(f"expected a method of streams ({known}), got {name!r}")
        if not callable(method):
            raise ArgumentTypeError(f"expected a function as {name!r}, got {method!r}")
    with _lock:
        _registered[device_type] = {**_registered.get(device_type, {}), **methods}


def stream_method(device_type: str, name: StreamMethod) -> Callable[..., Any]:
    """Return a method of the streams of a type of device: the registered one, or nbrt's."""
    methods = _registered.get(device_type.partition(":")[0], {})
    return methods.get(name) or _DEFAULTS[name]


def _set_stream_by_id(stream_id: int) -> None:
    set_stream(Stream.from_id(stream_id))


def _current_stream(device: DeviceLike = None) -> Stream:
    return current_stream(device)


_DEFAULTS: dict[str, Callable[..., Any]] = {
    "current_stream": _current_stream,
    "create_stream_context": StreamGuard,
    "set_stream": set_stream,
    "set_stream_by_id": _set_stream_by_id,
}


def _forget(device_type: str) -> None:
    with _lock:
        _registered.pop(device_type, None)


registry.on_removed(_forget)
