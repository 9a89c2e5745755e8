"""`TcpStore`: what ranks know of each other before NCCL connects them, in CuPy's store."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from typing import Any

from nbrt.errors import DistributedError

__all__ = ["TcpStore"]

_ATTEMPT = 5.0
"""Seconds that one look for the server may take."""

_PAUSE = 1e-3
"""Seconds between two looks whether a server that has just begun listens."""


class TcpStore:
    """CuPy's store of small values, over TCP; see `Store`.

    Parameters
    ----------
    host : str
        A name or IPv4 address of the server's machine.
    port : int
        Where it listens.
    is_server : bool
        Whether this process serves it.

    Raises
    ------
    DistributedError
        If this process cannot listen there.
    """

    def __init__(self, host: str, port: int, is_server: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns of a missing NCCL, which is not used here
            from cupyx.distributed import _store
        self._place = host, port
        self._proxy = _store.TCPStoreProxy(host, port)
        self._server: Any = None
        if is_server:
            self._check_free()
            self._server = _store.TCPStore(1)  # the size is for its barrier, which we do not use
            # A thread, not the process of its `run`: that forks, which a process with CUDA and
            # threads should not, cannot be spawned, and keeps the program from ending.
            thread = threading.Thread(
                target=self._server._server_loop, args=self._place, name="nbrt-store", daemon=True
            )
            self._server._set_process(thread)
            thread.start()
            while thread.is_alive() and not self._is_reachable():
                time.sleep(_PAUSE)

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none yet."""
        self._look()
        try:
            value: bytes = self._proxy[key]
        except RuntimeError as error:
            if str(error) == repr(key):  # the server's KeyError
                return None
            raise ConnectionError(str(error)) from error
        return value

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""
        self._look()
        try:
            self._proxy[key] = value
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """End the server, if it is here."""
        if self._server is not None:
            self._server.stop()

    def _look(self) -> None:
        # CuPy's proxy tries for 25 s to reach the server; how long is for the caller to say.
        socket.create_connection(self._place, _ATTEMPT).close()

    def _is_reachable(self) -> bool:
        try:
            self._look()
        except OSError:
            return False
        return True

    def _check_free(self) -> None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(self._place)
        except OSError as error:
            host, port = self._place
            raise DistributedError(
                f"expected an address of this machine, where rank 0 runs, with a free port, got "
                f"{host}:{port} ({error})"
            ) from error
