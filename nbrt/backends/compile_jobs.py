"""Compilations as data for worker processes: `CompileJob`, and `Worker`, which runs it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from nbrt.backends.device_properties import DeviceProperties

__all__ = ["CompileJob", "NotStoredError", "OtherKeyError", "Worker", "check_key"]


class NotStoredError(Exception):
    """A kernel compiles, but its code cannot be put into the code store."""


class OtherKeyError(Exception):
    """The copy of a kernel in this process is another kernel: its code has another key."""


def check_key(key: str | None, expected: str) -> None:
    """Raise `OtherKeyError` unless a kernel has the key that it has where the code is wanted.

    A worker calls it before it compiles: errors of another kernel are none of the user's. For
    example, a worker process has no overloads that the program has registered with Numba.
    """
    if key != expected:
        message = "the kernel has another key in the compile process"
        raise OtherKeyError(message)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One compilation, for `Worker.compile` of a kind of device.

    Attributes
    ----------
    kind : str
        The kind of device: the name of its backend.
    key : str
        Key of the code in the code store: equal keys mean equal code.
    label : str
        The kernel and the types of its arguments, for tables.
    payload : bytes
        What `Worker.compile` takes.
    is_stored : bool
        Whether the code is in the code store, so that there is nothing to do.
    """

    kind: str
    key: str
    label: str
    payload: bytes
    is_stored: bool = False


class Worker:
    """A kind of device in a compile process, which has no access to the devices (picklable).

    A backend whose kernels compile in worker processes subclasses it and returns it from
    `DeviceInterface.worker`. Its module must be importable in the worker.

    Parameters
    ----------
    name : str
        The kind of device.
    properties : tuple of DeviceProperties
        The devices of the process that asks for code.
    current : int
        The current one.
    """

    preload: tuple[str, ...] = ()
    """Modules that are imported once, before worker processes are forked.

    ``"module:function"`` also calls the function, once as well.
    """

    def __init__(self, name: str, properties: tuple[DeviceProperties, ...], current: int) -> None:
        self.name = name
        self._properties = properties
        self._current = current

    def set_device(self, index: int) -> None:
        """Make `index` the device that `get_device_properties` describes by default."""
        self._properties[index]
        self._current = index

    def current_device(self) -> int:
        """Return the current index."""
        return self._current

    def get_device_properties(self, index: int | None = None) -> DeviceProperties:
        """Return the properties recorded when the worker was made."""
        return self._properties[self._current if index is None else index]

    def compile(self, payload: bytes) -> str:
        """Compile a job and put the code into the code store.

        Parameters
        ----------
        payload : bytes
            That of a `CompileJob` of this kind.

        Returns
        -------
        str
            The key of the stored code. The process that asked for the code ignores it if the key
            is not that of the job.

        Raises
        ------
        NbrtError
            If the kernel does not compile. Such errors are raised for the user. After any other
            exception the process that asked for the code compiles the kernel.
        NotStoredError
            If the code cannot be stored: the launch compiles it.
        """
        raise NotSupportedError(
            f"expected a kind of device that compiles in worker processes, got {self.name!r}; "
            f"its Worker has no compile method"
        )
