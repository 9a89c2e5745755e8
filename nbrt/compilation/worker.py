"""A worker process: it compiles one job after the other until its parent closes the connection."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt import errors
from nbrt.backends.compile_jobs import NotStoredError, OtherKeyError
from nbrt.errors import DeviceError, NbrtError

if TYPE_CHECKING:
    from nbrt.backends.compile_jobs import Worker
    from nbrt.compilation.environment import Environment

__all__ = ["Caution", "Failure", "Request", "serve"]


class Request(NamedTuple):
    """A job for a worker process.

    Attributes
    ----------
    backend : bytes
        The pickled `Worker` of the kind of device.
    environment : Environment
        The state of the process that wants the code.
    key : str
        Key of the code.
    payload : bytes
        Argument of `Worker.compile`.
    """

    backend: bytes
    environment: Environment
    key: str
    payload: bytes


class Failure(NamedTuple):
    """An error of a kernel, as it crosses processes.

    Attributes
    ----------
    name : str
        The class in `nbrt.errors`, or the nearest base of a backend's own class there.
    message : str
        Its message.
    cause : str
        The message of the compiler's error.
    """

    name: str
    message: str
    cause: str


class Caution(NamedTuple):
    """A warning of a compiler, as it crosses processes.

    Attributes
    ----------
    text : str
        Its message.
    category : type
        Its class.
    file : str
        Where it was raised.
    line : int
        The line there.
    """

    text: str
    category: type[Warning]
    file: str
    line: int

    @classmethod
    def of(cls, caught: warnings.WarningMessage) -> Caution:
        """Return a warning that was caught."""
        category = caught.category
        if category.__module__.partition(".")[0] not in _KNOWN:
            category = UserWarning
        return cls(str(caught.message), category, caught.filename, caught.lineno)

    def show(self) -> None:
        """Raise the warning in this process, by its filters."""
        registry = _shown.setdefault(self.file, {})
        warnings.warn_explicit(self.text, self.category, self.file, self.line, registry=registry)


_KNOWN = ("builtins", "nbrt", "numba", "numpy")
_shown: dict[str, dict[Any, Any]] = {}


def serve(descriptor: int) -> None:
    """Compile the jobs that arrive on a connection until its other end closes.

    Parameters
    ----------
    descriptor : int
        A connected socket. Replies are tuples of a status, its value and the memory in use in
        bytes: ``"ready"`` with the process id first, then for each job ``"stored"`` with its
        seconds and warnings, ``"failed"`` with a `Failure`, or ``"unstored"`` or ``"lost"`` with
        the reason.
    """
    backends: dict[bytes, Worker] = {}
    with Connection(descriptor) as connection:
        connection.send(("ready", os.getpid(), _resident()))
        while True:
            try:
                request = connection.recv()
                connection.send((*_reply(request, backends), _resident()))
            except (EOFError, OSError):
                return


def _reply(request: Request, backends: dict[bytes, Worker]) -> tuple[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        status, value = _compiled(request, backends)
    if status == "stored":
        value = value, [Caution.of(each) for each in caught]
    return status, value


def _compiled(request: Request, backends: dict[bytes, Worker]) -> tuple[str, Any]:
    begin = time.perf_counter()
    try:
        request.environment.apply()
        backend = backends.get(request.backend)
        if backend is None:
            backend = backends[request.backend] = pickle.loads(request.backend)
        key = backend.compile(request.payload)
    except NbrtError as error:
        if isinstance(error, DeviceError) or isinstance(error.__cause__, (OSError, MemoryError)):
            return "lost", traceback.format_exc()  # of this process, not of the kernel
        cause = "" if error.__cause__ is None else str(error.__cause__)
        return "failed", Failure(_public_class(error), str(error), cause)
    except NotStoredError as error:
        return "unstored", str(error)
    except OtherKeyError as error:
        return "lost", str(error)
    except Exception:  # noqa: BLE001  # the parent compiles the kernel
        return "lost", traceback.format_exc()
    if key != request.key:
        return "lost", "the kernel has another key in the compile process"
    return "stored", time.perf_counter() - begin


def _resident() -> int:
    """Return the most bytes of memory that the process has had."""
    import resource  # absent on Windows, where there are no workers

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _public_class(error: NbrtError) -> str:
    return next(each.__name__ for each in type(error).__mro__ if hasattr(errors, each.__name__))
