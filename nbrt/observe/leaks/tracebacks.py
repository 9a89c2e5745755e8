"""`release_tracebacks`: free the memory that the variables of a failed call hold.

After an exception, an interactive interpreter keeps the traceback for post-mortem debugging, and so
the variables of all functions in it.
"""

from __future__ import annotations

import builtins
import gc
import sys
import traceback
from contextlib import suppress
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import NotSupportedError
from nbrt.observe.leaks.expressions import is_array_type, is_function, locals_of
from nbrt.runtime.memory.functions import memory_allocated

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["held_by_tracebacks", "hint_after_errors", "release_tracebacks"]

_MAX_DEPTH = 4
"""References followed from a variable."""

_MAX_OBJECTS = 20_000
"""Objects searched in total."""

_ELSEWHERE = (type, ModuleType, FrameType, TracebackType)
"""Types whose references are not followed."""

_HINT_BYTES = 1 << 20
"""Smallest memory that a hint reports."""


def release_tracebacks(*, outputs: bool = False) -> dict[Device, int]:
    """Clear the last exception of a notebook or an interactive interpreter.

    Clears the variables of the functions in its traceback, including causes, contexts and grouped
    exceptions; afterwards post-mortem debugging is impossible. Exceptions that the program stored
    and frames that still run do not change.

    Parameters
    ----------
    outputs : bool
        Drop the results of cells too: ``_``, ``__``, ``___``, ``_1``, ... and ``Out``.

    Returns
    -------
    freed : dict of Device to int
        The bytes freed on each device.

    Examples
    --------
    >>> freed = release_tracebacks()
    >>> release_tracebacks()  # nothing left
    {}
    """
    before = _in_use()
    for frame in _frames(_last_exceptions()):
        with suppress(RuntimeError):  # still running
            frame.clear()
            if is_function(frame):
                locals_of(frame)  # updates the copy that Python < 3.13 keeps
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        with suppress(AttributeError):
            delattr(sys, name)
    shell = _shell()
    if shell is not None:
        shell.InteractiveTB.tb = None
    if outputs:
        _forget_outputs(shell)
    gc.collect()
    freed = {device: before.get(device, nbytes) - nbytes for device, nbytes in _in_use().items()}
    return {device: nbytes for device, nbytes in freed.items() if nbytes > 0}


def held_by_tracebacks() -> dict[Device, int]:
    """Return the bytes per device that only the traceback of the last exception seems to hold.

    Counts allocations that the variables of its functions reach in a few steps, but the global
    variables of their modules do not. Takes milliseconds; works without IPython.

    Examples
    --------
    >>> held_by_tracebacks()
    {}
    """
    frames = _frames(_last_exceptions())
    values = [
        value for frame in frames if is_function(frame) for value in locals_of(frame).values()
    ]
    if not values:
        return {}
    allocations = _allocations_in(values)
    if allocations:
        namespaces = {id(frame.f_globals): frame.f_globals for frame in frames}.values()
        allocations -= _allocations_in(
            [value for each in namespaces for value in list(each.values())]
        )
    held: dict[Device, int] = {}
    for allocation in allocations:
        held[allocation.device] = held.get(allocation.device, 0) + allocation.nbytes
    return held


def hint_after_errors(enabled: bool = True) -> None:
    """Print after a failed notebook cell how much memory its traceback holds, from 1 MiB on.

    Parameters
    ----------
    enabled : bool
        False disables the hint.

    Raises
    ------
    NotSupportedError
        Outside IPython and Jupyter.
    """
    shell = _shell()
    if shell is None:
        raise NotSupportedError(
            "expected to run in IPython or Jupyter; elsewhere call release_tracebacks() after an "
            "exception"
        )
    with suppress(ValueError):  # it was not registered
        shell.events.unregister("post_run_cell", _hint)
    if enabled:
        shell.events.register("post_run_cell", _hint)


def _hint(result: Any) -> None:
    if result.error_in_exec is None:
        return
    held = held_by_tracebacks()
    if sum(held.values()) >= _HINT_BYTES:
        text = ", ".join(f"{nbytes / 2**20:.1f} MiB on {device}" for device, nbytes in held.items())
        sys.stderr.write(
            f"The traceback of this cell holds {text}; nbrt.memory.release_tracebacks() frees it.\n"
        )


def _in_use() -> dict[Device, int]:
    """Return the allocated bytes of every device whose backend is initialized."""
    devices = [
        Device(interface.name, index)
        for interface in registry.ready_interfaces()
        for index in range(interface.device_count())
    ]
    return {device: memory_allocated(device) for device in devices}


def _shell() -> Any:
    """Return the running IPython shell, or None; does not import IPython."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _forget_outputs(shell: Any) -> None:
    if shell is None:
        with suppress(AttributeError):
            del builtins._  # type: ignore[attr-defined]  # the last result in plain Python
    elif shell.displayhook.do_full_cache:
        shell.displayhook.flush()
        # IPython also keeps the last results in the user namespace.
        shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)


def _last_exceptions() -> list[BaseException | TracebackType]:
    """Return the exceptions and tracebacks that the interpreter keeps."""
    kept = [getattr(sys, name, None) for name in ("last_exc", "last_value", "last_traceback")]
    shell = _shell()
    if shell is not None:
        result = shell.last_execution_result
        kept += [getattr(shell.InteractiveTB, "tb", None), getattr(result, "error_in_exec", None)]
    return [each for each in kept if each is not None]


def _frames(roots: Iterable[BaseException | TracebackType]) -> list[FrameType]:
    """Return the distinct frames of exceptions, with their causes, contexts and groups."""
    frames: dict[int, FrameType] = {}
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, BaseException):
            inner = [item.__cause__, item.__context__, item.__traceback__]
            if isinstance(item, BaseExceptionGroup):
                inner += item.exceptions
            pending += [each for each in inner if each is not None]
        else:
            frames.update((id(frame), frame) for frame, _ in traceback.walk_tb(item))
    return list(frames.values())


def _allocations_in(values: list[Any]) -> set[Any]:
    """Return the allocations of arrays that values refer to within `_MAX_DEPTH` steps."""
    interfaces = registry.ready_interfaces()
    allocations: set[Any] = set()
    seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is reused
    level = values
    for _ in range(_MAX_DEPTH):
        further: list[Any] = []
        for value in level:
            # `isinstance` would query a lazy proxy for its target, which may fail.
            cls = type(value)
            if id(value) in seen or issubclass(cls, _ELSEWHERE) or len(seen) > _MAX_OBJECTS:
                continue
            seen[id(value)] = value
            owner = None
            if is_array_type(cls):
                owners = (interface.owner_of(value) for interface in interfaces)
                owner = next((each for each in owners if each is not None), None)
            if owner is not None:
                allocations.add(owner)
            elif cls is FunctionType:
                further += value.__closure__ or ()  # not its globals
            else:
                further += gc.get_referents(value)
        level = further
    return allocations
