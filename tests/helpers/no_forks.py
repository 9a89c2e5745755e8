"""Imported in a process, it lets its next two forks fail, as if there were too many processes."""

from __future__ import annotations

import errno
import os

_fork = os.fork
_refusals = iter(range(2))


def _refused() -> int:
    if next(_refusals, None) is None:
        return _fork()
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


os.fork = _refused
