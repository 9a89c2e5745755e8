"""The folder of compiled code, and which of its contents are trusted.

Compiled code runs with the rights of the user who loads it. A folder or file is trusted if it
belongs to the user of the process and no other user may write it; folders below the first one and
files must not be symbolic links. Folders above it are not checked: a user who replaces the folder
of another one cannot make files that belong to that user. Windows has no such check: there the
folder lies in the profile of the user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import warnings
from pathlib import Path

from nbrt.config import settings
from nbrt.errors import UntrustedCacheWarning

__all__ = ["cache_directory", "is_trusted_folder", "make_folder", "read_trusted"]

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HAS_OWNERS = hasattr(os, "geteuid")
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a named pipe must not block
    | getattr(os, "O_BINARY", 0)
)

_warned: set[str] = set()


def cache_directory() -> Path | None:
    """Return the folder of compiled code, which may not exist.

    Returns
    -------
    Path or None
        ``NBRT_CACHE_DIR`` if set, else the user's cache folder on this platform; None if the user
        has no home directory.
    """
    chosen = settings().cache_dir
    if chosen is not None:
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nbrt"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "nbrt" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "nbrt"


def is_trusted_folder(root: Path, *below: str) -> bool:
    """Return whether a folder exists and is trusted, with those between it and the root.

    Warns once if it exists and is not trusted. The root may be a symbolic link of the user; a
    folder below it may not.

    Parameters
    ----------
    root : Path
        The folder of compiled code.
    *below : str
        The names of the folders below it, from the outside to the inside.
    """
    path = str(root)
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            if (reason := _foreign_owner(status)) is not None:
                return _warn(root, path, reason)
            status = os.stat(path)
        for name in (None, *below):
            if name is not None:
                path = os.path.join(path, name)
                status = os.lstat(path)
            reason = _reason(status)
            if reason is not None:
                return _warn(root, path, reason)
            if not stat.S_ISDIR(status.st_mode):
                return False
    except OSError:
        return False
    return True


def make_folder(root: Path, *below: str) -> bool:
    """Make a folder for the user alone; return whether it exists now and is trusted."""
    if is_trusted_folder(root, *below):
        return True
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for depth in range(len(below) + 1):
            with contextlib.suppress(FileExistsError):
                root.joinpath(*below[:depth]).mkdir(mode=0o700)
            if not is_trusted_folder(root, *below[:depth]):
                return False
    except OSError:
        return False
    return True


def read_trusted(root: Path, path: str, size: int | None = None) -> bytes | None:
    """Return the content of a file if it exists and is trusted, else None.

    Warns once if it is not trusted. The folder of the file is not checked.

    Parameters
    ----------
    root : Path
        The folder of compiled code.
    path : str
        The file.
    size : int, optional
        Bytes to read at most.
    """
    try:
        handle = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:  # O_NOFOLLOW met a link
            _warn(root, path, "it is a symbolic link")
        return None
    try:
        status = os.fstat(handle)
        reason = _reason(status)
        if reason is not None:
            _warn(root, path, reason)
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return file.read() if size is None else file.read(size)
    except OSError:
        return None
    finally:
        os.close(handle)


def _reason(status: os.stat_result) -> str | None:
    """Return why a file or folder is not trusted, or None."""
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not _HAS_OWNERS:
        return None
    if (reason := _foreign_owner(status)) is not None:
        return reason
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"other users may write it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _foreign_owner(status: os.stat_result) -> str | None:
    if not _HAS_OWNERS or status.st_uid == os.geteuid():
        return None
    return f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"


def _warn(root: Path, path: str, reason: str) -> bool:
    """Warn once for a root; return False."""
    if str(root) not in _warned:
        _warned.add(str(root))
        warnings.warn(
            f"compiled code in {root} is not trusted and not used: {path}: {reason}; set "
            f"NBRT_CACHE_DIR to a folder of your own, or correct the owner and the mode (chown, "
            f"chmod go-w) if you trust the content; see the guide, page 'Compiled code'",
            UntrustedCacheWarning,
            stacklevel=2,
        )
    return False
