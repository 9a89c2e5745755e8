"""The exception tree: every error nbrt raises on purpose derives from `NbrtError`.

Each message says what was expected, what was got and what to do next. Where a built-in exception
names the same situation (``ValueError``, ``TypeError``, ``MemoryError``), the class derives from it
too, so that code written for NumPy or CuPy keeps working.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentError",
    "ArgumentOverflowError",
    "ArgumentTypeError",
    "BackendUnavailableError",
    "CollectiveTimeoutError",
    "CompileError",
    "DeferredCallError",
    "DeviceError",
    "DeviceMismatchError",
    "DistributedError",
    "EventError",
    "ForkedProcessError",
    "KernelCheckError",
    "KernelDeadlockError",
    "KernelError",
    "LaunchError",
    "MemoryLeakError",
    "MemoryRaceError",
    "MemoryRaceWarning",
    "NbrtCleanupWarning",
    "NbrtError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PlacementError",
    "RankFailedError",
    "RankMismatchError",
    "RngCollisionWarning",
    "StaleCaptureWarning",
    "StreamError",
    "UnknownDeviceError",
    "UnsupportedArgumentError",
    "UnsupportedConstructError",
]


class NbrtError(Exception):
    """Base of every error that nbrt raises on purpose."""


class ArgumentError(NbrtError, ValueError):
    """A value is outside what the call accepts."""


class ArgumentTypeError(NbrtError, TypeError):
    """A value is of a type that the call does not accept."""


class ArgumentOverflowError(ArgumentError, OverflowError):
    """A number, or the width of a range, is beyond the range of its dtype."""


class UnsupportedArgumentError(ArgumentError, NotImplementedError):
    """A combination of arguments has a meaning, but nbrt does not implement it."""


class DeviceError(NbrtError, RuntimeError):
    """A device, or the backend behind it, cannot do what was asked."""


class UnknownDeviceError(DeviceError, ValueError):
    """No backend has the given name, or it has no device of the given index."""


class BackendUnavailableError(DeviceError):
    """The backend is known but cannot run on this machine; the message gives its own reason."""


class ForkedProcessError(DeviceError):
    """A backend initialised before ``fork`` was used in the child; use ``spawn``."""


class DeferredCallError(DeviceError):
    """A call queued before initialisation failed at it; the message shows where it was queued."""


class DeviceMismatchError(DeviceError, ValueError):
    """Two things that must share a device live on different ones."""


class NotSupportedError(DeviceError, NotImplementedError):
    """The kind of device does not have the capability asked for."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device has no room for an allocation, also after its caches were dropped."""


class StreamError(NbrtError, RuntimeError):
    """Work queued on a stream failed; raised at the next synchronisation point."""


class EventError(NbrtError, RuntimeError):
    """An event was used in an order that has no meaning, such as timed before it was recorded."""


class KernelError(NbrtError):
    """Something about a kernel is wrong."""


class CompileError(KernelError, TypeError):
    """A kernel does not compile for these argument types; the message names its line."""


class UnsupportedConstructError(CompileError):
    """A kernel uses what this device's compiler does not have; named with its line."""


class LaunchError(KernelError, ValueError):
    """A launch configuration or its arguments do not fit the kernel or the device."""


class KernelCheckError(KernelError, RuntimeError):
    """Checked mode found faults in a launch, which has run to its end.

    Parameters
    ----------
    message : str
        The text of the reports.
    reports : tuple
        One for each fault, with its kind, line, variable, index and threads as attributes.
    """

    def __init__(self, message: str, reports: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.reports = reports

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.reports)


class KernelDeadlockError(KernelError, RuntimeError):
    """The threads of a launch wait for each other and none can go on; names the line they wait at.

    What the launch has written so far stays written.
    """


class MemoryLeakError(NbrtError, RuntimeError):
    """Memory that was allocated in a block is still held at its end.

    Parameters
    ----------
    message : str
        What is held, where it was allocated, and by whom it is held.
    leaks : tuple of HeldMemory
        One for each allocation.
    """

    def __init__(self, message: str, leaks: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.leaks = leaks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.leaks)


class MemoryRaceError(NbrtError, RuntimeError):
    """The race checker found memory used after its free, or by streams that nothing orders.

    Parameters
    ----------
    message : str
        The text of the reports.
    reports : tuple of MemoryRaceReport
        One for each fault, with kind, device, address, streams and stacks as attributes.
    """

    def __init__(self, message: str, reports: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.reports = reports

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.reports)


class DistributedError(NbrtError, RuntimeError):
    """Something that several ranks do together went wrong."""


class RankMismatchError(DistributedError, ValueError):
    """Ranks that must agree do not; the message says which rank differs, and in what."""


class CollectiveTimeoutError(DistributedError, TimeoutError):
    """Ranks did not come to a collective operation in time; the message names the missing ones."""


class RankFailedError(DistributedError):
    """A rank ended with an exception, so what the others wait for will never come.

    Parameters
    ----------
    message : str
        Which rank, and its exception.
    rank : int
        Its number in the world.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank)


class PlacementError(DistributedError, ValueError):
    """An operation has no meaning for how its arrays are spread over the mesh."""


class RngCollisionWarning(RuntimeWarning):
    """Ranks that should draw different random values are about to draw equal ones."""


class MemoryRaceWarning(RuntimeWarning):
    """What `MemoryRaceError` is raised for, where the race checker is to warn only."""


class StaleCaptureWarning(RuntimeWarning):
    """A kernel captures a value that changes: it keeps the old one, or is often compiled anew."""


class NbrtCleanupWarning(RuntimeWarning):
    """Something failed where nothing can be raised, such as a finalizer."""
