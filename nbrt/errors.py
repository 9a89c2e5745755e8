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
    "BundleError",
    "CaptureError",
    "CollectiveTimeoutError",
    "CompileError",
    "DeferredCallError",
    "DeviceError",
    "DeviceMismatchError",
    "DistributedError",
    "EventError",
    "FakeReadError",
    "ForkedProcessError",
    "GraphError",
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
    "UntrustedCacheWarning",
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
    """A device or its backend cannot do the operation."""


class UnknownDeviceError(DeviceError, ValueError):
    """No backend has the given name, or it has no device of the given index."""


class BackendUnavailableError(DeviceError):
    """The backend is known but cannot run on this machine; the message has its reason."""


class ForkedProcessError(DeviceError):
    """A backend initialised before ``fork`` was used in the child; use ``spawn``."""


class DeferredCallError(DeviceError):
    """A call queued before initialisation failed; the message shows where it was queued."""


class DeviceMismatchError(DeviceError, ValueError):
    """Two objects that must share a device are on different ones."""


class NotSupportedError(DeviceError, NotImplementedError):
    """The kind of device does not have the requested capability."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device has too little memory for an allocation, even with empty caches."""


class FakeReadError(DeviceError):
    """A value of a fake array was asked for, which has none; the message names the line."""


class StreamError(NbrtError, RuntimeError):
    """Work queued on a stream failed; raised at the next synchronisation point."""


class EventError(NbrtError, RuntimeError):
    """An event was used in an order that has no meaning, such as timed before it was recorded."""


class GraphError(NbrtError, RuntimeError):
    """A graph cannot be replayed, updated or saved as asked."""


class CaptureError(GraphError):
    """A call cannot be captured, or a capture cannot end; nothing was run."""


class KernelError(NbrtError):
    """Base of the errors of kernels."""


class CompileError(KernelError, TypeError):
    """A kernel does not compile for these argument types; the message names its line."""


class UnsupportedConstructError(CompileError):
    """A kernel uses a construct that the device's compiler lacks; the message names its line."""


class BundleError(NbrtError, ValueError):
    """A file is no bundle of compiled code that fits this machine; nothing of it was loaded."""


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
    """The threads of a launch wait for each other; the message names the line of the wait.

    The values that the launch has written remain.
    """


class MemoryLeakError(NbrtError, RuntimeError):
    """Memory that was allocated in a block is still held at its end.

    Parameters
    ----------
    message : str
        The allocations, their sites and their holders.
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
    """Base of the errors of operations of several ranks."""


class RankMismatchError(DistributedError, ValueError):
    """Ranks do not agree; the message names the rank that differs and the difference."""


class CollectiveTimeoutError(DistributedError, TimeoutError):
    """Ranks missed the timeout of a collective operation; the message names them."""


class RankFailedError(DistributedError):
    """A rank ended with an exception, so the other ranks would wait for ever.

    Parameters
    ----------
    message : str
        The rank and its exception.
    rank : int
        Its number in the world.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank)


class PlacementError(DistributedError, ValueError):
    """An operation has no meaning for the placements of its arrays."""


class RngCollisionWarning(RuntimeWarning):
    """Ranks draw equal random values where they should differ."""


class MemoryRaceWarning(RuntimeWarning):
    """The race checker found a fault as of `MemoryRaceError`, in the mode that only warns."""


class StaleCaptureWarning(RuntimeWarning):
    """A captured value of a kernel changes: the kernel keeps the old one or recompiles often."""


class NbrtCleanupWarning(RuntimeWarning):
    """A cleanup failed where no exception can be raised, such as a finalizer."""


class UntrustedCacheWarning(RuntimeWarning):
    """Compiled code on disk is not used, because other users could have written it."""
