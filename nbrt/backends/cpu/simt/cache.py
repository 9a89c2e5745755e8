"""Compiled kernels on disk, shared by all processes of a user.

A cache is never a reason for a launch to fail or to run other code than the kernel says: files are
written aside and renamed, checked when read, and any trouble means compiling as if there were none.
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
import numba
import numpy as np
from numba.core import config
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from nbrt.backends.cpu.simt.fingerprint import UnhashableError, fingerprint
from nbrt.config import settings

if TYPE_CHECKING:
    from types import FunctionType

__all__ = ["KernelCache", "cache_directory"]

_SUFFIX = ".simt"
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_directory() -> Path | None:
    """Give the folder of compiled kernels, whether or not it exists.

    Returns
    -------
    Path or None
        ``NBRT_CACHE_DIR`` if set, else the platform's folder for a user's caches; None if the user
        has no home.
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
    function : function
        The kernel.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function

    def key(
        self, block: tuple[int, int, int], arguments: tuple[Any, ...], target: Any
    ) -> str | None:
        """Give the name under which a version is kept, or None if this kernel cannot be kept."""
        try:
            parts = (
                _environment(),
                repr(target.codegen().magic_tuple()).encode(),
                fingerprint(self._function),
                repr((block, arguments)).encode(),
            )
        except UnhashableError:
            return None
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def load(self, key: str, arguments: tuple[Any, ...], target: Any) -> Any:
        """Give the compile result kept under a key, or None."""
        path = _path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
            digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if hashlib.sha256(payload).digest() != digest:
                return None
            result = CompileResult._rebuild(target, *pickle.loads(payload))
        except Exception:  # noqa: BLE001 - whatever is wrong with the file, compiling is right
            return None
        return result if tuple(result.signature.args) == arguments else None

    def save(self, key: str, result: Any) -> None:
        """Keep a compile result under a key, if the disk lets us."""
        path = _path(key)
        if path is None:
            return
        try:
            payload = dumps(result._reduce())
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, hashlib.sha256(payload).digest() + payload)
        except Exception:  # noqa: BLE001 - the kernel is compiled; not keeping it costs time only
            return


def _path(key: str) -> Path | None:
    folder = cache_directory()
    return folder / "simt" / key[:2] / (key + _SUFFIX) if folder is not None else None


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time."""
    handle, name = tempfile.mkstemp(prefix=path.stem[:16], suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@lru_cache(maxsize=1)
def _environment() -> bytes:
    """Hash what compiled code depends on besides the kernel: versions, settings, this compiler."""
    digest = hashlib.sha256()
    versions = (sys.version, platform.machine(), numba.__version__, llvmlite.__version__)
    settings = (config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.BOUNDSCHECK)
    cuda = sys.modules.get("numba.cuda")
    dialect = getattr(cuda, "__version__", None)
    digest.update(repr((versions, np.__version__, dialect, settings)).encode())
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), here.parent / "blocks.py"]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.digest()
