"""A worker process: it compiles one job after the other until its parent closes the connection."""

from __future__ import annotations

import os
import pickle
import time
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt.backends.compile_jobs import NotStoredError
from nbrt.errors import NbrtError

if TYPE_CHECKING:
    from nbrt.backends.compile_jobs import Worker
    from nbrt.compilation.environment import Environment

__all__ = ["Failure", "Request", "serve"]


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
        The class in `nbrt.errors`.
    message : str
        Its message.
    cause : str
        The message of the compiler's error.
    """

    name: str
    message: str
    cause: str


def serve(descriptor: int) -> None:
    """Compile the jobs that arrive on a connection until its other end closes.

    Parameters
    ----------
    descriptor : int
        A connected socket. Replies are tuples of a status and its value: ``("ready", pid)`` first,
        then ``("stored", seconds)``, ``("failed", Failure)``, ``("unstored", reason)`` or
        ``("lost", reason)`` for each job.
    """
    backends: dict[bytes, Worker] = {}
    with Connection(descriptor) as connection:
        connection.send(("ready", os.getpid()))
        while True:
            try:
                request = connection.recv()
                connection.send(_reply(request, backends))
            except (EOFError, OSError):
                return


def _reply(request: Request, backends: dict[bytes, Worker]) -> tuple[str, Any]:
    begin = time.perf_counter()
    try:
        request.environment.apply()
        backend = backends.get(request.backend)
        if backend is None:
            backend = backends[request.backend] = pickle.loads(request.backend)
        key = backend.compile(request.payload)
    except NbrtError as error:
        cause = "" if error.__cause__ is None else str(error.__cause__)
        return "failed", Failure(type(error).__name__, str(error), cause)
    except NotStoredError as error:
        return "unstored", str(error)
    except Exception:  # noqa: BLE001  # the parent compiles the kernel
        return "lost", traceback.format_exc()
    if key != request.key:
        return "lost", "the kernel has another key in the worker"
    return "stored", time.perf_counter() - begin
