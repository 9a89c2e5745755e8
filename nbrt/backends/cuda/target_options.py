"""Compiler options of dispatchers, as a part of the key of compiled code."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nbrt.backends.declared_signatures import declared_signatures
from nbrt.backends.fingerprint import UnhashableError
from nbrt.backends.foreign_overloads import option_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["hash_options"]


def hash_options(dispatcher: Any) -> bytes:
    """Hash the compiler options of a dispatcher, with the content of the files that it links.

    Parameters
    ----------
    dispatcher : dispatcher
        A kernel or a device function, of the CUDA or the CPU target.

    Returns
    -------
    bytes
        The digest. With line information, it depends on the place of the function.

    Raises
    ------
    UnhashableError
        If code that is compiled with these options must not be stored: it is for debugging, an
        object of the program takes part in its launches, or a linked file includes others.
    """
    options = dispatcher.targetoptions
    if options.get("debug"):
        raise UnhashableError("a function with debug=True")
    if options.get("extensions"):
        raise UnhashableError("a function with extensions of its launches")
    parts = [f"{name}={option_text(options[name])}" for name in sorted(options) if name != "link"]
    parts += sorted(map(str, declared_signatures(dispatcher)))
    if options.get("lineinfo"):
        parts.append(repr(list(_places(dispatcher.py_func.__code__))))
    digest = hashlib.sha256(repr(parts).encode())
    for linked in options.get("link") or ():
        digest.update(_hash_linked(linked))
    return digest.digest()


def _places(code: CodeType) -> Iterator[tuple[str, int, bytes]]:
    yield code.co_filename, code.co_firstlineno, code.co_linetable
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _places(constant)


def _hash_linked(linked: Any) -> bytes:
    """Hash a file name, or an object of numba-cuda with code."""
    from numba.cuda.cudadrv.linkable_code import LinkableCode
    from numba.cuda.utils import cached_file_read

    if isinstance(linked, str):
        # The content with which numba-cuda links: it reads a file once in a process.
        kind, content = PurePath(linked).suffix, cached_file_read(linked, how="rb")
    elif isinstance(linked, LinkableCode):
        if linked.setup_callback or linked.teardown_callback:
            raise UnhashableError(f"{linked!r} with a function that numba-cuda calls")
        kind, content = f"{type(linked).__name__} {linked.nrt}", linked.data
    else:
        raise UnhashableError(f"the linked object {linked!r}")
    data = content.encode() if isinstance(content, str) else bytes(content)
    if "cu" in kind.lower() and b"#" in data and b"include" in data:
        raise UnhashableError(f"{linked!r}, which includes other files")
    return hashlib.sha256(kind.encode()).digest() + hashlib.sha256(data).digest()
