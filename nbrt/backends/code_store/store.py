"""`CodeStore`: entries by key on disk, safe with many processes, users and nodes.

The store never makes a launch fail. A file is written under a temporary name and renamed; its
digest is checked at every read, so a reader of a slow or incomplete rename finds no entry.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.code_store.entry import Entry, EntryError, check_key, check_kind
from nbrt.backends.code_store.folder import (
    cache_directory,
    is_trusted_folder,
    make_folder,
    read_trusted,
)
from nbrt.config import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["CodeStore", "StoredEntry", "clear_store", "stored_bytes", "stored_kinds"]

_SUFFIX = ".nbrtc"
_TEMPORARY = ".tmp"
_NAME = re.compile(r"([0-9a-f]{64}\.\w+|[0-9a-f]{16}\w*\.tmp)")
"""Names of the store's files, earlier formats included; no other file is ever deleted."""

_SHARD = re.compile(r"[0-9a-f]{2}")
_MAX_TEMPORARY_SECONDS = 3600
"""A temporary file that is older belongs to a process that died."""

_SCANS_PER_LIMIT = 64
"""How often the folder is measured, on average, while as many bytes as the limit are written."""

_START_BYTES = 4096
"""Most headers are shorter: one read gives the header."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry in the store, without its code.

    Attributes
    ----------
    key : str
        Its key.
    entry : Entry
        The entry, as its header says; `sections` is empty, and the digest is not verified.
    size : int
        Bytes of the file.
    used : float
        When it was last stored or loaded, in seconds since 1970.
    """

    key: str
    entry: Entry
    size: int
    used: float


class CodeStore:
    """The compiled code of one kind of device on disk.

    Parameters
    ----------
    kind : str
        The kind of device.

    Attributes
    ----------
    kind : str
        As given.
    """

    def __init__(self, kind: str) -> None:
        self.kind = check_kind(kind)

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key; None if there is none, or it is damaged or not trusted."""
        content = self.read(key)
        if content is None:
            return None
        try:
            entry = Entry.from_bytes(content, self.kind, key)
        except EntryError:
            return None
        with contextlib.suppress(OSError):  # file systems may not update the time of access
            os.utime(self._path(key))
        return entry

    def is_writable(self) -> bool:
        """Return whether code can be stored: there is a folder, and it is trusted and writable."""
        root = cache_directory()
        if root is None or not make_folder(root, self.kind):
            return False
        return os.access(root / self.kind, os.W_OK)

    def has(self, key: str) -> bool:
        """Return whether there is a file of a key in a trusted folder; its content is not read."""
        return self._trusted_root(key) is not None and os.path.isfile(self._path(key))

    def read(self, key: str) -> bytes | None:
        """Return the bytes of the file of a key, unverified; None if it is missing or untrusted."""
        root = self._trusted_root(key)
        return read_trusted(root, self._path(key)) if root is not None else None

    def put(self, key: str, entry: Entry) -> bool:
        """Store an entry under a key.

        Parameters
        ----------
        key : str
            64 hexadecimal digits: a digest of all that the code depends on.
        entry : Entry
            The compiled kernel.

        Returns
        -------
        bool
            Whether it is stored. Errors of the file system are ignored.
        """
        if entry.kind != self.kind:
            raise EntryError(f"expected an entry of kind {self.kind!r}, got {entry.kind!r}")
        return self.write(key, entry.to_bytes(check_key(key)))

    def write(self, key: str, content: bytes) -> bool:
        """Store the bytes of an entry, as `put` does."""
        root = cache_directory()
        if root is None or not make_folder(root, self.kind, check_key(key)[:2]):
            return False
        try:
            _write(self._path(key), content)
        except OSError:
            return False
        if _is_scan_due(key, len(content)):
            _trim(root)
        return True

    def remove(self, key: str) -> bool:
        """Delete the entry of a key; return whether there was one."""
        if self._trusted_root(key) is None:
            return False
        try:
            os.unlink(self._path(key))
        except OSError:
            return False
        return True

    def entries(self) -> Iterator[StoredEntry]:
        """Yield the entries, without their code; skip files that are damaged or not trusted."""
        root = cache_directory()
        for file in _files(root, self.kind) if root is not None else ():
            key, suffix = os.path.splitext(file.name)
            if root is None or suffix != _SUFFIX:
                continue
            try:
                status = file.stat(follow_symlinks=False)
                entry = self._header(root, file.path, status.st_size, key)
            except (OSError, EntryError):
                continue
            if entry is not None:
                yield StoredEntry(key, entry, status.st_size, status.st_mtime)

    def trim(self) -> None:
        """Delete the least recently used files, of all kinds, beyond ``NBRT_CACHE_LIMIT``."""
        root = cache_directory()
        if root is not None:
            _trim(root)

    def _trusted_root(self, key: str) -> Path | None:
        """Return the folder of compiled code if a key's folder exists there and is trusted."""
        root = cache_directory()
        if root is None or not is_trusted_folder(root, self.kind, check_key(key)[:2]):
            return None
        return root

    def _header(self, root: Path, path: str, size: int, key: str) -> Entry | None:
        start = read_trusted(root, path, _START_BYTES)
        if start is None:
            return None
        length = Entry.header_bytes(start)
        if length > len(start):
            start = read_trusted(root, path, length)
            if start is None:
                return None
        return Entry.without_sections(start, size, self.kind, key)

    def _path(self, key: str) -> str:
        return os.path.join(str(cache_directory()), self.kind, key[:2], key + _SUFFIX)


def stored_kinds() -> tuple[str, ...]:
    """Return the kinds of device of which the store may have entries, in alphabetical order."""
    root = cache_directory()
    return tuple(sorted(_folders(root))) if root is not None and is_trusted_folder(root) else ()


def stored_bytes() -> int:
    """Return the bytes of all files of the store, those of earlier formats included."""
    total = 0
    for file in _all_files(cache_directory()):
        with contextlib.suppress(OSError):
            total += file.stat(follow_symlinks=False).st_size
    return total


def clear_store() -> None:
    """Delete all files of the store, those of earlier formats included; leave other files."""
    for file in _all_files(cache_directory()):
        with contextlib.suppress(OSError):
            os.unlink(file.path)


def _all_files(root: Path | None) -> Iterator[os.DirEntry[str]]:
    if root is not None and is_trusted_folder(root):
        for kind in _folders(root):
            yield from _files(root, kind)


def _folders(root: Path) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(root) as found:
        for folder in found:
            if folder.name.isidentifier() and folder.is_dir(follow_symlinks=False):
                yield folder.name


def _files(root: Path, kind: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files of the store of a kind of device; no others."""
    if not is_trusted_folder(root, kind):
        return
    with contextlib.suppress(OSError), os.scandir(root / kind) as shards:
        for shard in shards:
            if _SHARD.fullmatch(shard.name) and is_trusted_folder(root, kind, shard.name):
                with contextlib.suppress(OSError), os.scandir(shard) as files:
                    yield from (file for file in files if _NAME.fullmatch(file.name))


def _write(path: str, content: bytes) -> None:
    """Write a file atomically; other processes may write it at the same time."""
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=name[:16], suffix=_TEMPORARY, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _is_scan_due(key: str, size: int) -> bool:
    """Return whether the write of an entry is one of those after which the folder is measured.

    The key is a digest, so its last digits are a random number that needs no counter. A counter
    would have to be shared by all processes and nodes.
    """
    limit = settings().cache_limit
    return bool(limit) and int(key[-8:], 16) * limit < size * _SCANS_PER_LIMIT << 32


def _trim(root: Path) -> None:
    limit = settings().cache_limit
    if not limit:
        return
    files: list[tuple[int, int, str]] = []
    now = _file_time(root)
    for file in _all_files(root):
        with contextlib.suppress(OSError):  # another process may be faster
            status = file.stat(follow_symlinks=False)
            if not file.name.endswith(_TEMPORARY):
                files.append((status.st_mtime_ns, status.st_size, file.path))
            elif now is not None and status.st_mtime < now - _MAX_TEMPORARY_SECONDS:
                os.unlink(file.path)
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            break
        try:
            os.unlink(path)
        except FileNotFoundError:  # another process trims
            total -= size
        except OSError:
            continue
        else:
            total -= size


def _file_time(root: Path) -> float | None:
    """Return the time by which the file system dates new files, or None.

    The clock of a server of files may differ from that of this machine.
    """
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
