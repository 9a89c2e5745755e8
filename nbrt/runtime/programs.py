"""The programs of a kernel, one for each kind of device, and the check of captured values."""

from __future__ import annotations

import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from nbrt import config
from nbrt._internal.tracebacks import at_caller
from nbrt.backends import registry
from nbrt.backends.captures import bind
from nbrt.backends.interface import CapturingProgram
from nbrt.errors import StaleCaptureWarning
from nbrt.runtime import commands
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.captures import Captures
    from nbrt.backends.interface import DeviceInterface, Program

__all__ = [
    "BoundProgram",
    "Programs",
    "at_caller",
    "commands",
    "compile_call",
    "current_stream",
    "forget_at_end",
    "lock",
    "programs_of",
]

_MAX_SILENT_RENEWALS = 15
"""Recompilations of a kernel without a warning."""

INTERRUPT = KeyboardInterrupt
MISSING_NAME = (AttributeError, KeyError, NameError)
"""Exceptions that `_CALL` catches; the kernel's module may use their names for others."""

_CALL = """
def __call__(_nbrt_self, *_nbrt_args):
    _nbrt_stream = _nbrt_self.stream
    if _nbrt_stream is None:
        _nbrt_stream = _nbrt.current_stream()
    _nbrt_last, _nbrt_launch, _nbrt_packed, _nbrt_program = _nbrt_self._last
    try:
        _nbrt_is_current = (
            _nbrt_last is _nbrt_stream and _nbrt_program is _nbrt_bound and {is_current}
        )
    except _nbrt.MISSING_NAME:
        _nbrt_is_current = False
    if not _nbrt_is_current:
        _nbrt_launch, _nbrt_packed = _nbrt_self._launch_on(_nbrt_stream, _nbrt_args)
    if not _nbrt_self._is_empty:
        try:
            if _nbrt_packed is None or _nbrt.commands.hooks or not _nbrt_stream._lazy.is_ready:
                _nbrt_stream.enqueue("launch", _nbrt_launch, _nbrt_args, _nbrt_self._label)
            else:
                _nbrt_packed(_nbrt_stream.queue, _nbrt_args)
        except _nbrt.INTERRUPT as _nbrt_error:
            __tracebackhide__ = True  # IPython then ends at the caller's line
            raise _nbrt.at_caller(_nbrt_error) from None
"""
"""`ConfiguredKernel.__call__` of one kernel, as source for `Captures.bind`.

The latest plan is launched if it is of the current stream and of this program, and if no captured
value has changed. A function for each kernel makes this check cost a few nanoseconds.

`Stream.enqueue` would call the same `launch_packed` where there are no hooks. It is called here,
since the frame of `enqueue` and the copies of the arguments take a quarter of a microsecond.
"""

_CALL_ASYNC = _CALL.replace(
    "{is_current}",
    "{is_current} and _nbrt_launch.__self__.is_prepared(_nbrt_stream.queue, _nbrt_args)",
)
"""The same with ``NBRT_ASYNC``: the latest plan is launched if it has code for these arguments.

Plans without `is_prepared` raise AttributeError.
"""

lock = threading.RLock()
"""Held while programs are made, installed and forgotten."""


class _HoldsPrograms(Protocol):
    def forget(self, interface: DeviceInterface) -> None: ...


_holders: WeakSet[_HoldsPrograms] = WeakSet()


def forget_at_end(holder: _HoldsPrograms) -> None:
    """Call ``holder.forget(interface)`` when a backend that takes the place of another ends."""
    with lock:
        _holders.add(holder)


def _begin_substitution(kind: str) -> Callable[[], None]:
    def end() -> None:
        interface = registry.get_interface_for_device(kind)
        with lock:
            for holder in list(_holders):
                holder.forget(interface)

    return end


registry.on_substituted(_begin_substitution)


@dataclass(frozen=True, slots=True, eq=False)
class BoundProgram:
    """A program and the captured values that it is compiled with.

    Attributes
    ----------
    program : Program
        The kernel as a backend holds it.
    captures : Captures or None
        The values to compare at every launch; None: changes have no effect.
    """

    program: Program
    captures: Captures | None = None


class Programs:
    """The programs of one kernel, by kind of device.

    Parameters
    ----------
    function : callable
        The kernel.

    Attributes
    ----------
    function : callable
        As given.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self._bound: dict[DeviceInterface, BoundProgram] = {}
        self._renewals = 0

    def get(self, interface: DeviceInterface) -> BoundProgram:
        """Return the program of a kind of device, a new one if a captured value has changed."""
        bound = self._bound.get(interface)
        if bound is None:
            with lock:
                return self._bound.get(interface) or self._make(interface)
        captures = bound.captures
        if captures is None or captures.is_current is None:
            return bound
        if captures.is_current() or captures.holds():
            return bound
        changes = ", ".join(captures.changes())
        if config.settings().stale_captures == "warn":
            bound = self._bound[interface] = BoundProgram(bound.program)
            self._warn(
                f"was compiled with other values of {changes}; it keeps them, because "
                f"NBRT_STALE_CAPTURES is warn"
            )
            return bound
        with lock:
            known = self._bound.get(interface)
            if known is not None and known is not bound:  # another thread was faster
                return known
            bound = self._make(interface)
            self._renewals += 1
            is_often = self._renewals == _MAX_SILENT_RENEWALS + 1
        if is_often:
            self._warn(
                f"was compiled anew {_MAX_SILENT_RENEWALS + 1} times because captured values "
                f"change, now {changes}; pass them as arguments"
            )
        return bound

    def _make(self, interface: DeviceInterface) -> BoundProgram:
        program = interface.program(self.function)
        captures = program.captures if isinstance(program, CapturingProgram) else None
        bound = self._bound[interface] = BoundProgram(program, captures)
        forget_at_end(self)
        return bound

    def forget(self, interface: DeviceInterface) -> None:
        """Drop the program of a backend."""
        self._bound.pop(interface, None)

    def _warn(self, message: str) -> None:
        name = getattr(self.function, "__qualname__", repr(self.function))
        # Frames up to the launch: this, `get`, `Kernel.bound`, `_launch_on`, `__call__`.
        warnings.warn(f"kernel {name} {message}", StaleCaptureWarning, stacklevel=6)


def programs_of(function: Callable[..., object]) -> list[Programs]:
    """Return the programs of the kernels of a function, as far as they have been launched."""
    with lock:
        holders = list(_holders)
    return [each for each in holders if isinstance(each, Programs) and each.function is function]


def compile_call(bound: BoundProgram) -> Callable[..., None]:
    """Return the `ConfiguredKernel.__call__` of a kernel whose current program is `bound`."""
    names = {"_nbrt": sys.modules[__name__], "_nbrt_bound": bound}
    source = _CALL_ASYNC if config.is_async else _CALL
    return bind(source, names) if bound.captures is None else bound.captures.bind(source, names)
