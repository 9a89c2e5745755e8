"""Compiled kernels on disk, shared by all processes of a user.

The cache never makes a launch fail and never runs other code than the kernel's: files are written
under a temporary name and renamed, a digest is checked on every read, and after any error the
kernel compiles. If the folder exceeds ``NBRT_CACHE_LIMIT``, its least recently used files are
deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import config, types
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from nbrt.backends.fingerprint import UnhashableError, fingerprint
from nbrt.config import settings

if TYPE_CHECKING:
    from nbrt.backends.captures import Captures

__all__ = ["KernelCache", "cache_directory"]

_SUFFIX = ".simt"
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_directory() -> Path | None:
    """Return the folder of compiled kernels, which may not exist.

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


class KernelCache:
    """The compiled versions of one kernel on disk.

    Parameters
    ----------
    captures : Captures
        The kernel, with the values that it is compiled with.
    """

    def __init__(self, captures: Captures) -> None:
        self._captures = captures

    def key(
        self, block: tuple[int, int, int], arguments: tuple[Any, ...], target: Any
    ) -> str | None:
        """Return the key of a version, or None if the kernel cannot be cached."""
        try:
            parts = (
                _environment(),
                repr(target.codegen().magic_tuple()).encode(),
                fingerprint(self._captures.frozen, self._captures.freeze),
                repr((block, [_description(kind) for kind in arguments])).encode(),
            )
        except UnhashableError:
            return None
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def has(self, key: str) -> bool:
        """Return whether there is a file under a key."""
        path = _path(key)
        return path is not None and path.is_file()

    def load(self, key: str, arguments: tuple[Any, ...], target: Any) -> Any:
        """Return the compile result stored under a key, or None."""
        path = _path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
            digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if hashlib.sha256(payload).digest() != digest:
                return None
            symbols, parts = pickle.loads(payload)
            if not _are_known(symbols):
                target.refresh()  # registers all functions that Numba's code may call
                if not _are_known(symbols):
                    return None
            result = CompileResult._rebuild(target, *parts)
        except Exception:  # noqa: BLE001 - the file is unusable: compile
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # file systems may not update the time of access
        return result if tuple(result.signature.args) == arguments else None

    def save(self, key: str, result: Any) -> None:
        """Store a compile result under a key; ignore errors of the file system."""
        path = _path(key)
        if path is None or not all(env.can_cache() for env in result.referenced_envs):
            return
        try:
            payload = dumps((_symbols(result.library), result._reduce()))
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, hashlib.sha256(payload).digest() + payload)
            _trim(path.parents[1])
        except Exception:  # noqa: BLE001 - the kernel is compiled; a missing file costs time only
            return


def _description(kind: Any) -> object:
    """Return a value whose text tells a type from all others: names of tuples lack their fields."""
    if not isinstance(kind, types.BaseTuple):
        return kind
    return kind, getattr(kind, "fields", ()), tuple(map(_description, kind.types))


def _symbols(library: Any) -> list[str]:
    """Return the symbols of the process that compiled code refers to."""
    module = library._final_module
    values = (*module.functions, *module.global_variables)
    return [
        value.name
        for value in values
        if value.is_declaration and not value.name.startswith("llvm.")
    ]


def _are_known(symbols: list[str]) -> bool:
    # LLVM ends the process if it links a symbol that does not exist.
    return all(llvm.address_of_symbol(name) is not None for name in symbols)


def _path(key: str) -> Path | None:
    folder = cache_directory()
    return folder / "simt" / key[:2] / (key + _SUFFIX) if folder is not None else None


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically; other processes may write it at the same time."""
    handle, name = tempfile.mkstemp(prefix=path.stem[:16], suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


_trimmed: set[Path] = set()


def _trim(folder: Path) -> None:
    """Delete the least recently used files beyond the limit; once per process and folder."""
    limit = settings().cache_limit
    if not limit or folder in _trimmed:
        return
    _trimmed.add(folder)
    files = [(file, file.stat()) for file in folder.glob("*/*")]
    total = sum(status.st_size for _, status in files)
    for file, status in sorted(files, key=lambda item: item[1].st_mtime_ns):
        if total <= limit:
            break
        with contextlib.suppress(OSError):  # another process may be faster
            file.unlink()
            total -= status.st_size


@lru_cache(maxsize=1)
def _environment() -> bytes:
    """Return a hash of versions, settings and this compiler, on which compiled code depends."""
    digest = hashlib.sha256()
    versions = (sys.version, platform.machine(), numba.__version__, llvmlite.__version__)
    settings = (config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.BOUNDSCHECK)
    dialect = getattr(sys.modules.get("numba_cuda"), "__version__", None)
    digest.update(repr((versions, np.__version__, dialect, settings)).encode())
    here = os.path.dirname(os.path.dirname(__file__))
    backends = os.path.dirname(os.path.dirname(here))
    own = [os.path.join(backends, name) for name in ("dialect.py", "fingerprint.py")]
    own.append(os.path.join(backends, "cpu", "block_scheduler.py"))
    for folder, _, names in os.walk(here):  # takes a third of pathlib's time
        own += [os.path.join(folder, name) for name in names if name.endswith((".py", ".ll"))]
    for path in sorted(own):
        with open(path, "rb", buffering=0) as file:
            digest.update(os.path.relpath(path, here).encode() + file.read())
    return digest.digest()
