"""Bundles: a zip file of entries with a manifest.

The manifest says what the bundle contains: each kernel with its target, the versions of its
compilers, its size and its SHA-256 digest. A bundle is read without pickle, nothing of it runs, and
names in it are never used as paths.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
import zipfile
import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nbrt._version import __version__
from nbrt.backends.code_store.entry import Entry, EntryError, check_key, check_kind
from nbrt.backends.code_store.store import CodeStore, StoredEntry
from nbrt.config import settings
from nbrt.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from nbrt.backends.code_store.compiler_info import CompilerInfo

__all__ = ["LoadedEntry", "load_bundle", "write_bundle"]

_MANIFEST = "manifest.json"
_FORMAT = "nbrt bundle"
_VERSION = 1
_MAX_MANIFEST_BYTES = 2**26
_MAX_ENTRY_BYTES = 2**28
"""Kernels have some kilobytes. A small file can claim any size, and unpacks to it."""
_MAX_SHOWN = 5
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    AttributeError,
    EOFError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,  # an encrypted file
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class LoadedEntry:
    """An entry of a bundle, and what became of it.

    Attributes
    ----------
    key : str
        Its key.
    entry : Entry
        The entry, without its code.
    size : int
        Bytes of its file.
    status : str
        ``"loaded"``; ``"present"`` if the store had it; ``"skipped"`` if it is for another target.
    """

    key: str
    entry: Entry
    size: int
    status: str


def write_bundle(path: Path, stored: Iterable[StoredEntry]) -> tuple[StoredEntry, ...]:
    """Write a bundle; an existing file is replaced when the new one is complete.

    Parameters
    ----------
    path : Path
        The file.
    stored : iterable of StoredEntry
        Entries of the code store. Those that are damaged or were deleted since are left out.

    Returns
    -------
    tuple of StoredEntry
        The entries in the bundle.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as archive:
            written, rows = [], []
            for each in sorted(stored, key=lambda one: (one.entry.kind, one.key)):
                content = CodeStore(each.entry.kind).read(each.key)
                try:
                    entry = Entry.from_bytes(content or b"", each.entry.kind, each.key)
                except EntryError:
                    continue
                archive.writestr(_file_of(entry.kind, each.key), content or b"")
                written.append(each)
                rows.append(_row(each.key, entry, content or b""))
            manifest = {
                "format": _FORMAT,
                "version": _VERSION,
                "nbrt": __version__,
                "created": int(time.time()),
                "entries": rows,
            }
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return tuple(written)


def load_bundle(
    path: Path,
    compiler_of: Callable[[str], CompilerInfo | None],
    keeps: Callable[[Entry], bool],
) -> tuple[LoadedEntry, ...]:
    """Copy entries of a bundle into the code store, after checking all of them.

    Parameters
    ----------
    path : Path
        The file.
    compiler_of : callable
        Returns the compiler of a kind of device on this machine, or None.
    keeps : callable
        Whether the user asked to keep an entry for another target.

    Returns
    -------
    tuple of LoadedEntry
        All entries of the bundle.

    Raises
    ------
    BundleError
        If the file is damaged, or has no code for this machine and its compilers, or the code
        cannot be stored. The store is then as before.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            decided = _decided(path, _verified(archive), compiler_of, keeps)
            _store(path, archive, decided)
    except BundleError:
        raise
    except OSError as error:
        raise BundleError(
            f"expected a bundle of compiled code, cannot read {path}: {error}"
        ) from error
    except _DAMAGE as error:
        raise BundleError(
            f"expected a bundle of compiled code, got {path}, which is damaged or none: {error}; "
            f"nothing was loaded"
        ) from error
    return tuple(decided)


def _file_of(kind: str, key: str) -> str:
    return f"{check_kind(kind)}/{check_key(key)}"


def _row(key: str, entry: Entry, content: bytes) -> dict[str, Any]:
    """Return the row of an entry in the manifest."""
    row = {**asdict(replace(entry, sections={}, data={})), "key": key, "size": len(content)}
    del row["sections"], row["data"]
    return {**row, "sha256": hashlib.sha256(content).hexdigest()}


def _verified(archive: zipfile.ZipFile) -> list[LoadedEntry]:
    """Return the entries of a bundle, each of them read and compared with the manifest."""
    manifest = json.loads(_read(archive, _MANIFEST, _MAX_MANIFEST_BYTES))
    if manifest["format"] != _FORMAT or manifest["version"] != _VERSION:
        raise ValueError(f"the manifest is of format {manifest['format']} {manifest['version']}")
    rows = manifest["entries"]
    names = [_MANIFEST, *(_file_of(row["kind"], row["key"]) for row in rows)]
    if sorted(names) != sorted(archive.namelist()) or len(set(names)) != len(names):
        raise ValueError("its files are not those of the manifest")
    found = []
    for row in rows:
        entry = _entry(archive, row)[0]
        found.append(LoadedEntry(row["key"], replace(entry, sections={}), row["size"], ""))
    return found


def _entry(archive: zipfile.ZipFile, row: Mapping[str, Any]) -> tuple[Entry, bytes]:
    """Return an entry of a bundle and its bytes, compared with its row of the manifest."""
    name = _file_of(row["kind"], row["key"])
    if type(row["size"]) is not int or not 0 <= row["size"] <= _MAX_ENTRY_BYTES:
        raise ValueError(f"the size of {name} is {row['size']!r}")
    content = _read(archive, name, row["size"])
    entry = Entry.from_bytes(content, row["kind"], row["key"])
    if _row(row["key"], entry, content) != row:
        raise ValueError(f"the file {name} does not fit the manifest")
    return entry, content


def _read(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return a file of a bundle, of at most `limit` bytes."""
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"the file {name} has an unknown compression")
    with archive.open(info) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"the file {name} is longer than {limit} bytes")
    return content


def _decided(
    path: Path,
    entries: list[LoadedEntry],
    compiler_of: Callable[[str], CompilerInfo | None],
    keeps: Callable[[Entry], bool],
) -> list[LoadedEntry]:
    """Return the entries with their status."""
    compilers = {kind: compiler_of(kind) for kind in sorted({e.entry.kind for e in entries})}
    decided, misfits = [], []
    for each in entries:
        compiler = compilers[each.entry.kind]
        if compiler is not None and compiler.runs(each.entry):
            reason = compiler.difference(each.entry)
            if reason is not None:
                misfits.append(f"{each.entry.name}: {reason}")
        elif not keeps(each.entry):
            decided.append(replace(each, status="skipped"))
            continue
        decided.append(replace(each, status=_status(each)))
    if misfits:
        raise BundleError(
            f"expected code of the compilers of this process, got {path} with code of others: "
            f"{_listed(misfits)}; nothing was loaded; make the bundle with the same versions"
        )
    if all(each.status == "skipped" for each in decided):
        theirs = sorted({_target_text(e.entry.target, e.entry.features) for e in entries})
        here = [_target_text(*pair) for c in compilers.values() if c for pair in c.targets.items()]
        raise BundleError(
            f"expected code for this machine ({_listed(here) or 'no target'}), got {path} with "
            f"code for {_listed(theirs) or 'nothing'}; nothing was loaded; to keep "
            f"code for another machine, name its target (--target, targets=)"
        )
    return decided


def _status(each: LoadedEntry) -> str:
    return "present" if CodeStore(each.entry.kind).get(each.key) is not None else "loaded"


def _store(path: Path, archive: zipfile.ZipFile, decided: list[LoadedEntry]) -> None:
    """Store the entries to load; all or none."""
    chosen = [each for each in decided if each.status == "loaded"]
    limit, size = settings().cache_limit, sum(each.size for each in chosen)
    if limit and size > limit:
        raise BundleError(
            f"expected at most {limit} bytes (NBRT_CACHE_LIMIT) of code, got {size} in {path}; "
            f"nothing was loaded; raise the limit"
        )
    done: list[LoadedEntry] = []
    try:
        for each in chosen:
            name = _file_of(each.entry.kind, each.key)
            content = _read(archive, name, each.size)
            Entry.from_bytes(content, each.entry.kind, each.key)  # verified before, but read again
            if not CodeStore(each.entry.kind).write(each.key, content):
                raise BundleError(
                    f"expected a folder of compiled code that can be written, cannot write code of "
                    f"{path}; nothing was loaded; set NBRT_CACHE_DIR to a folder of your own"
                )
            done.append(each)
    except BaseException:
        for each in done:
            CodeStore(each.entry.kind).remove(each.key)
        raise


def _target_text(target: str, features: str) -> str:
    """Return a target, with a digest of its features, which are too many to read."""
    digest = hashlib.sha256(features.encode()).hexdigest()[:8]
    return f"{target} (features {digest})" if features else target


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MAX_SHOWN
    return "; ".join(texts[:_MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")
