"""Compiled code on disk: list it, delete it, and move it between machines in bundles.

The command ``nbrt cache`` prints the same. The guide, page "Compiled code", describes the folder,
and which files in it are trusted.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from nbrt.backends.code_store.bundle import LoadedEntry, load_bundle, write_bundle
from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.folder import cache_directory
from nbrt.backends.code_store.store import (
    CodeStore,
    StoredEntry,
    clear_store,
    stored_bytes,
    stored_kinds,
)
from nbrt.backends.registry import get_interface_for_device
from nbrt.errors import ArgumentError, ArgumentTypeError, UnknownDeviceError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from nbrt.backends.code_store.compiler_info import CompilerInfo

__all__ = [
    "Entry",
    "LoadedEntry",
    "StoredEntry",
    "bundle",
    "clear",
    "directory",
    "entries",
    "load",
    "size",
]


def directory() -> Path | None:
    """Return the folder of compiled code, which may not exist; None without a home directory."""
    return cache_directory()


def entries(kernels: Sequence[str] = (), targets: Sequence[str] = ()) -> tuple[StoredEntry, ...]:
    """Return the compiled kernels on disk, sorted by name.

    Parameters
    ----------
    kernels : sequence of str
        Names of kernels, which may contain ``*``. Default: all.
    targets : sequence of str
        Targets such as ``"sm_90a"``, ``"x86_64-znver4"``, ``"znver4"`` or ``"sm_*"``. Default: all.

    Returns
    -------
    tuple of StoredEntry
        One for each version of a kernel.

    Examples
    --------
    >>> import nbrt
    >>> for each in nbrt.cache.entries(kernels=["no_such_kernel"]):
    ...     print(each.entry.name, each.entry.signature, each.entry.target, each.size)
    """
    kernels, targets = _patterns("kernels", kernels), _patterns("targets", targets)
    found = [
        each
        for kind in stored_kinds()
        for each in CodeStore(kind).entries()
        if (not kernels or _is_named(each.entry, kernels))
        and (not targets or _is_for(each.entry, targets))
    ]
    found.sort(key=lambda each: (each.entry.name, each.entry.signature, each.entry.target))
    return tuple(found)


def size() -> int:
    """Return the bytes of compiled code on disk."""
    return stored_bytes()


def clear(kernels: Sequence[str] = (), targets: Sequence[str] = ()) -> tuple[StoredEntry, ...]:
    """Delete compiled code from disk; running processes keep the code that they have loaded.

    Parameters
    ----------
    kernels, targets : sequence of str
        As of `entries`. Without them all files of the store are deleted, damaged ones included.

    Returns
    -------
    tuple of StoredEntry
        The deleted entries.
    """
    chosen = entries(kernels, targets)
    if not kernels and not targets:
        clear_store()
        left = {(each.entry.kind, each.key) for each in entries()}
        return tuple(each for each in chosen if (each.entry.kind, each.key) not in left)
    return tuple(each for each in chosen if CodeStore(each.entry.kind).remove(each.key))


def bundle(
    path: str | os.PathLike[str], kernels: Sequence[str] = (), targets: Sequence[str] = ()
) -> tuple[StoredEntry, ...]:
    """Write compiled kernels to a file, for `load` on another machine.

    The bundle contains code of the compilers of this process only, and says which they are. It is a
    zip file with a manifest; see the guide, page "Compiled code".

    Parameters
    ----------
    path : path
        The file, which is replaced if it exists.
    kernels, targets : sequence of str
        As of `entries`.

    Returns
    -------
    tuple of StoredEntry
        The kernels in the bundle.

    Raises
    ------
    ArgumentError
        If no compiled kernel is chosen, or the file cannot be written.
    """
    chosen = entries(kernels, targets)
    compilers = {kind: _compiler_of(kind) for kind in {each.entry.kind for each in chosen}}
    current = []
    for each in chosen:
        compiler = compilers[each.entry.kind]
        if compiler is None or compiler.difference(each.entry) is None:
            current.append(each)
    if not current:
        others = f" but {len(chosen)} of other versions of the compilers" if chosen else ""
        raise ArgumentError(
            f"expected compiled kernels in {cache_directory()} to bundle, got none{others}; "
            f"'nbrt cache list' shows all; compile by a launch or with nbrt.compile"
        )
    try:
        return write_bundle(_path(path), current)
    except OSError as error:
        raise ArgumentError(f"expected a file that can be written, got {path}: {error}") from error


def load(path: str | os.PathLike[str], targets: Sequence[str] = ()) -> tuple[LoadedEntry, ...]:
    """Copy the code of a bundle to this user's folder, after checking all of it.

    Nothing of the bundle runs now; its code runs at the launch of the kernels that it was compiled
    from. Load bundles of people whose programs you would run as well.

    Parameters
    ----------
    path : path
        A file of `bundle`.
    targets : sequence of str
        Targets as of `entries` whose code is kept as well, for other machines; ``"*"``: all.
        Default: code for this machine only.

    Returns
    -------
    tuple of LoadedEntry
        All kernels of the bundle, each with its status.

    Raises
    ------
    BundleError
        If the file is damaged, has no code for this machine, or code of other compilers for it, or
        if the code cannot be stored. Nothing is loaded then.
    """
    targets = _patterns("targets", targets)
    return load_bundle(_path(path), _compiler_of, lambda entry: _is_for(entry, targets))


def _path(given: str | os.PathLike[str]) -> Path:
    try:
        return Path(given)
    except TypeError as error:
        raise ArgumentTypeError(f"expected the path of a file, got {given!r}") from error


def _patterns(name: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise ArgumentTypeError(f"expected a sequence of str for {name}, got {given!r}")
    return tuple(given)


def _is_named(entry: Entry, patterns: tuple[str, ...]) -> bool:
    names = (entry.name, entry.name.rpartition(".")[2])
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _is_for(entry: Entry, patterns: tuple[str, ...]) -> bool:
    names = (entry.target, entry.target.partition("-")[2])
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _compiler_of(kind: str) -> CompilerInfo | None:
    try:
        return get_interface_for_device(kind).compiler_info()
    except UnknownDeviceError:
        return None
