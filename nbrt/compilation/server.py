"""The server process: it imports the compilers once and forks workers in some milliseconds.

The scheduler starts ``python -m nbrt.compilation.server DESCRIPTOR``, so that workers have neither
the program's ``__main__`` module nor its threads, locks and memory. It is single-threaded. It ends,
and its workers with it, when its parent closes the connection or dies.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from nbrt.compilation.worker import serve

__all__ = ["main", "preload"]

_PR_SET_PDEATHSIG = 1
_CHUNK = 1 << 16
_MAX_DESCRIPTORS = 64


def main(arguments: list[str]) -> None:
    """Serve requests on a socket until its other end closes.

    Each request is a line of JSON: ``["preload", name, ...]``, ``["kill", pid]``, or ``["fork"]``
    with the descriptor of the worker's connection.

    Parameters
    ----------
    arguments : list of str
        The descriptor of the socket, and the id of the parent process.
    """
    descriptor, parent = map(int, arguments)
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with socket.socket(fileno=descriptor) as control:
        _Server(control).run()


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: set[int] = set()
        self._descriptors: list[int] = []
        # The end of a child writes a byte, which wakes `run`.
        self._ended, self._signalled = socket.socketpair()
        for end in (self._ended, self._signalled):
            end.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            received = b""
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._ended in ready:
                    self._reap()
                if self._control not in ready:
                    continue
                data, descriptors, _, _ = socket.recv_fds(self._control, _CHUNK, _MAX_DESCRIPTORS)
                if not data:
                    break
                self._descriptors += descriptors
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self._obey(*json.loads(line))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for child in self._children:
            os.kill(child, signal.SIGKILL)

    def _obey(self, request: str, *arguments: Any) -> None:
        match request:
            case "preload":
                preload(arguments)
            case "kill":
                if arguments[0] in self._children:
                    os.kill(arguments[0], signal.SIGKILL)
            case "fork":
                descriptor, server = self._descriptors.pop(0), os.getpid()
                try:
                    child = os.fork()
                except OSError:  # too many processes; the scheduler sees the connection close
                    os.close(descriptor)
                    return
                if child == 0:
                    for end in (self._control, self._ended, self._signalled):
                        end.close()
                    _work(descriptor, server)
                self._children.add(child)
                os.close(descriptor)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._ended.recv(_CHUNK)
        for child in list(self._children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._children.discard(child)


def preload(names: tuple[str, ...]) -> None:
    """Import modules for the workers to come, as `Worker.preload` names them."""
    for each in names:
        name, _, function = each.partition(":")
        # A worker that needs the module reports the error.
        with suppress(Exception):
            module = importlib.import_module(name)
            if function:
                getattr(module, function)()
    gc.collect()
    gc.freeze()  # collections in workers do not copy the pages of these objects


def _work(descriptor: int, server: int) -> None:
    """Run a worker in a forked process, which then ends without the cleanup of the server."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _die_with(server)
        serve(descriptor)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_with(parent: int) -> None:
    """Let the system end this process when its parent ends, where it can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
