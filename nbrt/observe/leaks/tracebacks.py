"""`release_tracebacks`: memory that the variables of a failed call still hold.

After an exception an interactive interpreter keeps the traceback, for post-mortem debugging, and
with it every variable of every function that was running.
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
from nbrt.observe.leaks.expressions import is_array_type
from nbrt.observe.leaks.frames import is_function, locals_of
from nbrt.runtime.memory.functions import memory_allocated

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["held_by_tracebacks", "hint_after_errors", "release_tracebacks"]

_MAX_DEPTH = 4
"""Steps from a variable into what it refers to."""

_MAX_OBJECTS = 20_000
"""Objects looked at in all."""

_ELSEWHERE = (type, ModuleType, FrameType, TracebackType)
"""What leads away from the values of a variable."""

_HINT_BYTES = 1 << 20
"""Less than this is no reason for a hint."""


def release_tracebacks(*, outputs: bool = False) -> dict[Device, int]:
    """Drop what a notebook or an interactive interpreter keeps of its last exception.

    Clears the variables of the functions in its traceback, and in those of the exceptions that it
    came from or groups; afterwards there is nothing left to debug post mortem. Exceptions that the
    program itself has kept, and tracebacks of functions that still run, stay as they are.

    Parameters
    ----------
    outputs : bool
        Forget the results of cells as well: ``_``, ``__``, ``___``, ``_1``, ... and ``Out``.

    Returns
    -------
    freed : dict of Device to int
        The bytes that were freed, of the devices where there were any.

    Examples
    --------
    >>> freed = release_tracebacks()
    >>> release_tracebacks()  # nothing is left to let go of
    {}
    """
    before = _in_use()
    for each in _frames(_last_exceptions()):
        with suppress(RuntimeError):  # still running
            each.clear()
            if is_function(each):
                locals_of(each)  # brings the copy that Python < 3.13 may keep up to date
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

    Counts what the variables of its functions reach in a few steps, without what global variables
    of these modules reach as well. Needs neither IPython nor an exception, and takes milliseconds.

    Examples
    --------
    >>> held_by_tracebacks()
    {}
    """
    frames = _frames(_last_exceptions())
    values = [value for each in frames if is_function(each) for value in locals_of(each).values()]
    if not values:
        return {}
    found = _allocations_in(values)
    if found:
        names: dict[int, dict[str, Any]] = {id(each.f_globals): each.f_globals for each in frames}
        kept = [value for each in names.values() for value in list(each.values())]
        found -= _allocations_in(kept)
    held: dict[Device, int] = {}
    for allocation in found:
        held[allocation.device] = held.get(allocation.device, 0) + allocation.nbytes
    return held


def hint_after_errors(enabled: bool = True) -> None:
    """Say after a failed notebook cell how much device memory its traceback holds, from 1 MiB on.

    Parameters
    ----------
    enabled : bool
        False: say nothing any more.

    Raises
    ------
    NotSupportedError
        Outside IPython and Jupyter.
    """
    shell = _shell()
    if shell is None:
        raise NotSupportedError(
            "expected to run in IPython or Jupyter, whose cells can be followed; elsewhere call "
            "release_tracebacks() after an exception"
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
    """Return the bytes that arrays hold on every device whose backend is in use."""
    devices = [
        Device(interface.name, index)
        for interface in registry.ready_interfaces()
        for index in range(interface.device_count())
    ]
    return {device: memory_allocated(device) for device in devices}


def _shell() -> Any:
    """Return the running IPython, if there is one; imports nothing."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _forget_outputs(shell: Any) -> None:
    if shell is None:
        with suppress(AttributeError):
            del builtins._  # type: ignore[attr-defined]  # where plain Python keeps the last result
    elif shell.displayhook.do_full_cache:
        shell.displayhook.flush()
        # IPython keeps the last results in a second place as well.
        shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)


def _last_exceptions() -> list[BaseException | TracebackType]:
    """Return what interpreters keep of the last exception."""
    found = [getattr(sys, name, None) for name in ("last_exc", "last_value", "last_traceback")]
    shell = _shell()
    if shell is not None:
        result = shell.last_execution_result
        found += [getattr(shell.InteractiveTB, "tb", None), getattr(result, "error_in_exec", None)]
    return [each for each in found if each is not None]


def _frames(roots: Iterable[BaseException | TracebackType]) -> list[FrameType]:
    """Return the frames of exceptions, of their causes, contexts and groups; each once."""
    found: dict[int, FrameType] = {}
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, BaseException):
            inner = [each.__cause__, each.__context__, each.__traceback__]
            if isinstance(each, BaseExceptionGroup):
                inner += each.exceptions
            waiting += [further for further in inner if further is not None]
        else:
            found.update((id(frame), frame) for frame, _ in traceback.walk_tb(each))
    return list(found.values())


def _allocations_in(values: list[Any]) -> set[Any]:
    """Return the allocations of the arrays that values refer to, in a bounded number of steps."""
    interfaces = registry.ready_interfaces()
    found: set[Any] = set()
    seen: dict[int, Any] = {}  # keeps what it has seen alive, so that no number is used twice
    level = values
    for _ in range(_MAX_DEPTH):
        further: list[Any] = []
        for value in level:
            # Not isinstance: it asks a lazy proxy for what it stands for, and that may fail.
            cls = type(value)
            if id(value) in seen or issubclass(cls, _ELSEWHERE) or len(seen) > _MAX_OBJECTS:
                continue
            seen[id(value)] = value
            owner = None
            if is_array_type(cls):
                owners = (interface.owner_of(value) for interface in interfaces)
                owner = next((each for each in owners if each is not None), None)
            if owner is not None:
                found.add(owner)
            elif cls is FunctionType:
                further += value.__closure__ or ()  # not its global variables
            else:
                further += gc.get_referents(value)
        level = further
    return found
