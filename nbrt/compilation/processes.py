"""The server process and the worker processes, as the scheduler sees them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nbrt.compilation.channel import Channel
from nbrt.compilation.environment import SINGLE_THREADED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbrt.backends.in_flight import InFlightJob

__all__ = ["Server", "WorkerProcess", "can_fork", "cpu_seconds"]

_EXIT_TIMEOUT = 10.0


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let a process that this thread starts ignore Ctrl-C from its first instruction on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def can_fork() -> bool:
    """Return whether this system has forks and passes descriptors between processes."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds")


class Server:
    """The server process; see `nbrt.compilation.server`. The calling thread must outlive it."""

    def __init__(self) -> None:
        if not sys.executable:  # Python is embedded in another program
            raise FileNotFoundError("expected the path of a Python interpreter, got none")
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_EXIT_TIMEOUT)
        # Without "" and with -P, modules in the current folder do not hide others.
        path = os.pathsep.join(filter(None, sys.path))
        variables = os.environ | SINGLE_THREADED | {"PYTHONPATH": path}
        with theirs:
            command = [sys.executable, "-P", "-m", "nbrt.compilation.server"]
            try:
                with _interrupts_blocked():
                    self._process = subprocess.Popen(
                        [*command, str(theirs.fileno()), str(os.getpid())],
                        stdin=subprocess.DEVNULL,
                        env=variables,
                        pass_fds=(theirs.fileno(),),
                    )
            except BaseException:
                self._control.close()
                raise
        self._preloaded: set[str] = set()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process ends."""
        return self._control.fileno()

    def preload(self, modules: Iterable[str]) -> None:
        """Import modules before further workers are forked."""
        new = [name for name in modules if name not in self._preloaded]
        self._preloaded.update(new)
        if new:
            self._send("preload", *new)

    def fork(self) -> WorkerProcess:
        """Start a worker, which sends ``("ready", pid)`` when it runs."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._send("fork", descriptors=[theirs.fileno()])
        return WorkerProcess(Channel(ours))

    def kill(self, pid: int) -> None:
        """End a worker."""
        self._send("kill", pid)

    def close(self, *, at_once: bool) -> None:
        """End the process and its workers.

        Parameters
        ----------
        at_once : bool
            Whether to interrupt what it does, such as its imports. It has no workers then.
        """
        self._control.close()
        if at_once:
            self._process.kill()
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """Close the copies of descriptors in a forked process, whose parent has the server."""
        self._control.close()
        self._process.returncode = 0

    def _send(self, *request: object, descriptors: Iterable[int] = ()) -> None:
        line = json.dumps(request).encode() + b"\n"
        with suppress(OSError):  # the scheduler sees the end of the process
            socket.send_fds(self._control, [line], list(descriptors))


class WorkerProcess:
    """A worker process.

    Parameters
    ----------
    channel : Channel
        The connection to it.

    Attributes
    ----------
    channel : Channel
        As given.
    pid : int or None
        Its id; None before it runs.
    entry : InFlightJob or None
        What it compiles.
    kind : str or None
        The kind of device for which it has compiled; None: none yet.
    since : float
        The time at which it began to be idle, or last used a CPU.
    cpu_seconds : float or None
        The CPU time it had used then.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.pid: int | None = None
        self.entry: InFlightJob | None = None
        self.kind: str | None = None
        self.since = 0.0
        self.cpu_seconds: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it runs and has no job."""
        return self.entry is None and self.pid is not None

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self.channel.fileno()


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time that a process has used; None if the system does not tell."""
    if sys.platform != "linux":
        return None
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        return None
    try:
        return time.clock_gettime(clock.value)
    except OSError:  # it has ended
        return None
