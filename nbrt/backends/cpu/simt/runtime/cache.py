"""The compiled versions of a kernel in the code store, shared by all processes of a user."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import llvmlite
import numba
import numpy as np
from numba.core import config, types
from numba.core.registry import CPUDispatcher

from nbrt._version import __version__
from nbrt.backends.code_store.compiler_info import CompilerInfo
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.cpu.simt.code_options import CodeOptions
from nbrt.backends.cpu.simt.prepared import PreparedType
from nbrt.backends.cpu.simt.runtime.stored_code import entry_of, result_of, target_of
from nbrt.backends.cpu.simt.target import simt_target
from nbrt.backends.fingerprint import UnhashableError, exception_classes, fingerprint
from nbrt.backends.foreign_overloads import hash_overloads, option_text
from nbrt.backends.program_registrations import is_program_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.captures import Captures

__all__ = ["KernelCache", "compiler_info", "compiler_versions"]


class KernelCache:
    """The compiled versions of one kernel on disk.

    After any error in the store, or in a stored version, the kernel compiles.

    Parameters
    ----------
    captures : Captures
        The kernel, with the values that it is compiled with.
    options : CodeOptions
        The options of the kernel.
    """

    def __init__(self, captures: Captures, options: CodeOptions) -> None:
        self._captures = captures
        self._options = options
        self._store = CodeStore("cpu")

    def key(
        self, block: tuple[int, int, int], arguments: tuple[Any, ...], target: Any
    ) -> str | None:
        """Return the key of a version, or None if the kernel cannot be cached."""
        if getattr(sys.modules.get("numba.cuda.core.config"), "ALWAYS_WARN_UNINIT_VAR", 0):
            return None  # the compiler warns, code from disk does not
        try:
            parts = (
                repr(sorted(compiler_versions().items())).encode(),
                repr(target.codegen().magic_tuple()).encode(),
                repr(self._options).encode(),
                fingerprint(self._captures.frozen, self._captures.freeze, _code_options),
                hash_overloads(_hash_options),
                repr((block, [_description(kind) for kind in arguments])).encode(),
            )
        except UnhashableError:
            return None
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def has(self, key: str) -> bool:
        """Return whether there is a file under a key."""
        return self._store.has(key)

    def load(self, key: str, arguments: tuple[Any, ...], target: Any) -> Any:
        """Return the compile result stored under a key, or None."""
        entry = self._store.get(key)
        if entry is None:
            return None
        try:
            return result_of(entry, arguments, target, self._exceptions)
        except Exception:  # noqa: BLE001 - the entry is unusable: compile
            return None

    def save(self, key: str, result: Any, block: tuple[int, int, int]) -> None:
        """Store a compile result under a key if it can be stored; ignore errors of the disk."""
        name = self._captures.frozen.__qualname__
        arguments = ", ".join(map(str, result.signature.args[1:]))
        signature = f"{arguments}; block {'x'.join(map(str, block))}"
        try:
            entry = entry_of(result, name, signature, compiler_versions(), self._exceptions)
        except Exception:  # noqa: BLE001 - the kernel is compiled; a missing entry costs time only
            return
        self._store.put(key, entry)

    def _exceptions(self) -> list[type[BaseException]]:
        return exception_classes(self._captures.frozen, self._captures.freeze)


def compiler_info() -> CompilerInfo:
    """Return the versions of the compiler and the processor of this machine."""
    target, features = target_of(simt_target.target_context)
    return CompilerInfo(compiler_versions(), {target: features})


def compiler_versions() -> Mapping[str, str]:
    """Return the versions and options on which compiled code depends, this compiler included."""
    # The options may change between two kernels, and between two jobs of a compile process.
    options = {
        "opt": getattr(config.OPT, "_raw_value", config.OPT),  # 3 or "max"
        "loop_vectorize": config.LOOP_VECTORIZE,
        "slp_vectorize": config.SLP_VECTORIZE,
        "boundscheck": config.BOUNDSCHECK,
    }
    text = " ".join(f"{name}={value}" for name, value in options.items())
    return {**_fixed_versions(), "options": text}


@cache
def _fixed_versions() -> Mapping[str, str]:
    return {
        "nbrt": f"{__version__}+{_source_digest()}",
        "python": f"{sys.implementation.name} {platform.python_version()}{_abi_flags()}",
        "platform": f"{sys.platform} {platform.machine()}",
        "numba": numba.__version__,
        "numba-cuda": _dialect_version(),
        "llvmlite": llvmlite.__version__,
        "numpy": np.__version__,
    }


def _code_options(dispatcher: Any) -> bytes:
    """Hash the options of a device function, or of a function jitted for the CPU."""
    if isinstance(dispatcher, CPUDispatcher):
        return _hash_options(dispatcher)
    return repr(CodeOptions.of(dispatcher)).encode()


def _hash_options(dispatcher: Any) -> bytes:
    """Hash the compiler options of a jitted function that an overload calls."""
    return option_text([dispatcher.targetoptions, getattr(dispatcher, "locals", {})]).encode()


def _description(kind: Any) -> object:
    """Return a value whose text tells a type from all others: names of tuples lack their fields.

    Raises
    ------
    UnhashableError
        For a type of the program, whose name says nothing of its members.
    """
    if isinstance(kind, PreparedType) or is_program_module(type(kind).__module__):
        raise UnhashableError(f"the type {kind}")
    if not isinstance(kind, types.BaseTuple):
        return kind
    return kind, getattr(kind, "fields", ()), tuple(map(_description, kind.types))


def _abi_flags() -> str:
    """Return the flags of the build of Python that change its C API."""
    flags = getattr(sys, "abiflags", "")
    return f" ({flags})" if flags else ""


def _dialect_version() -> str:
    """Return the version of numba-cuda, or "none" where Numba's own dialect is in its place."""
    try:
        import numba_cuda
    except ImportError:
        return "none"
    return str(numba_cuda.__version__)


def _source_digest() -> str:
    """Return a digest of the source of this compiler."""
    digest = hashlib.sha256()
    here = os.path.dirname(os.path.dirname(__file__))
    own = [os.path.join(os.path.dirname(here), "block_scheduler.py")]
    for folder, _, names in os.walk(here):  # takes a third of pathlib's time
        own += [os.path.join(folder, name) for name in names if name.endswith((".py", ".ll"))]
    for path in sorted(own):
        with open(path, "rb", buffering=0) as file:
            digest.update(os.path.relpath(path, here).encode() + file.read())
    return digest.hexdigest()[:16]
