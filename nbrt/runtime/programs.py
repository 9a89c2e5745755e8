"""`Programs`: what a kernel is compiled to on each kind of device, for the values it captures."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.interface import CapturingProgram
from nbrt.config import settings
from nbrt.errors import StaleCaptureWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.captures import Captures
    from nbrt.backends.interface import DeviceInterface, Program

__all__ = ["HeldProgram", "Programs"]

_MANY = 16
"""Times that a kernel is compiled anew before its programmer is told."""

_lock = threading.RLock()


@dataclass(slots=True)
class HeldProgram:
    """A program, and how a launch tells whether it is still the kernel's.

    Attributes
    ----------
    program : Program
        The kernel as a backend holds it.
    captures : Captures or None
        The values it is compiled with; None: the backend does not say.
    is_current : callable or None
        Returns whether no captured value has changed; None: there is none that counts.
    """

    program: Program
    captures: Captures | None = None
    is_current: Callable[[], bool] | None = None


class Programs:
    """The programs of one kernel, by kind of device.

    Parameters
    ----------
    function : callable
        The kernel.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._held: dict[DeviceInterface, HeldProgram] = {}
        self._renewals = 0

    def get(self, interface: DeviceInterface) -> HeldProgram:
        """Return the program of a kind of device, made anew if a captured value has changed."""
        held = self._held.get(interface)
        if held is None:
            with _lock:
                return self._held.get(interface) or self._make(interface)
        captures, is_current = held.captures, held.is_current
        if captures is None or is_current is None or is_current() or captures.holds():
            return held
        changes = ", ".join(captures.changes())
        if settings().stale_captures == "warn":
            held.is_current = None
            self._warn(
                f"was compiled with other values of {changes}; it keeps them, because "
                f"NBRT_STALE_CAPTURES is warn"
            )
            return held
        with _lock:
            if self._held[interface] is not held:  # another thread was faster
                return self._held[interface]
            found = self._make(interface)
            self._renewals += 1
            is_often = self._renewals == _MANY
        if is_often:
            self._warn(
                f"was compiled anew {_MANY} times because captured values change, now {changes}; "
                f"pass them as arguments"
            )
        return found

    def _make(self, interface: DeviceInterface) -> HeldProgram:
        program = interface.program(self._function)
        held = HeldProgram(program)
        if isinstance(program, CapturingProgram):
            held.captures, held.is_current = program.captures, program.captures.is_current
        self._held[interface] = held
        return held

    def _warn(self, message: str) -> None:
        name = getattr(self._function, "__qualname__", repr(self._function))
        # To the launch: this, `get`, `Kernel.held`, `ConfiguredKernel._plan` and its `__call__`.
        warnings.warn(f"kernel {name} {message}", StaleCaptureWarning, stacklevel=6)
