"""Overloads that the program has registered with Numba, as a part of the key of compiled code.

A kernel may use an overload of a function, method or attribute of NumPy or Numba without a name
that leads to it. So every key depends on every such overload of the program. Overloads of the
program's own functions do not count: a kernel that uses one names the function, which has no hash.

Packages that extend Numba by an entry point are imported at the first compilation, and the key of a
kernel may be computed before. They count by their versions, imported or not.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from functools import cache
from importlib.metadata import entry_points
from types import FunctionType
from typing import TYPE_CHECKING, Any

from numba.core import types

from nbrt.backends.fingerprint import UnhashableError, fingerprint
from nbrt.backends.program_registrations import (
    is_of_program,
    is_program_module,
    lowering_registries,
    modules_of,
    modules_of_template,
    registered_by_program,
    typing_registries,
)
from nbrt.backends.stable_modules import is_stable_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["hash_overloads", "option_text"]

_TYPINGS = ("functions", "attributes", "globals")
_LOWERINGS = ("functions", "getattrs", "setattrs", "casts", "constants")
_PLAIN = (type(None), bool, int, float, str)


def hash_overloads(options: Callable[[Any], bytes]) -> bytes:
    """Hash the overloads that the program, and libraries other than Numba, have registered.

    Parameters
    ----------
    options : callable
        Returns the compiler options of a jitted function as bytes; raises `UnhashableError`.

    Returns
    -------
    bytes
        The digest; it does not depend on the order of registration. Empty without overloads.

    Raises
    ------
    UnhashableError
        If the meaning of one cannot be hashed for certain. Of an installed library, other
        registrations than overloads are known by its version.
    """
    digests = [repr(each).encode() for each in sorted(_extensions().items())]
    for cuda in (False, True):  # kernels for CPU devices use the registrations of both
        for registry in typing_registries(cuda=cuda):
            digests += [_digest(each, options) for each in _foreign(registry, _TYPINGS)]
        for registry in lowering_registries(cuda=cuda):
            lowerings = (each[0] for each in _foreign(registry, _LOWERINGS))
            digests += [_library_digest(modules_of(each), each.__qualname__) for each in lowerings]
    return hashlib.sha256(b"".join(sorted(set(digests)))).digest() if digests else b""


def option_text(value: Any) -> str:
    """Return a text of the value of an option that is the same in every process.

    Raises
    ------
    UnhashableError
        If there is none.
    """
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(option_text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(option_text, value)))}}}"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{option_text(value[name])}' for name in sorted(value))}}}"
    raise UnhashableError(f"the compiler option {value!r}")


def _foreign(registry: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the registrations of a registry that count: templates, or lowerings."""
    for name in names:
        for each in registered_by_program(registry, name):
            for part in _templates_of(each) if name == "globals" else [each]:
                if _is_foreign(part) and not _is_of_extension(part):
                    yield part


@cache
def _extensions() -> dict[str, str]:
    """Return the packages that Numba imports at the first compilation, with their versions."""
    found = entry_points(group="numba_extensions")
    return {each.module.partition(".")[0]: each.dist.version for each in found if each.dist}


def _is_of_extension(registration: Any) -> bool:
    """Return whether a registration is of such packages alone."""
    is_template = isinstance(registration, type)
    modules = modules_of_template(registration) if is_template else modules_of(registration[0])
    roots = _roots(modules)
    return bool(roots) and roots <= _extensions().keys()


def _roots(modules: set[str]) -> set[str]:
    """Return the packages among modules that are neither of nbrt nor known to every process."""
    return {each.partition(".")[0] for each in filter(is_program_module, modules)}


def _templates_of(registration: Any) -> list[Any]:
    """Return the templates of a value and its type in the list of globals."""
    return list(getattr(registration[1], "templates", ()))


def _is_foreign(registration: Any) -> bool:
    """Return whether a registration is of the program, and for names that are not."""
    if not is_of_program(registration):
        return False
    if isinstance(registration, type):
        return _is_stable(getattr(registration, "key", None))
    if not isinstance(registration[0], FunctionType):
        return any(map(_is_foreign, _templates_of(registration)))
    _, *key, types_of_key = registration
    return all(map(_is_stable, (*key, *types_of_key)))


def _is_stable(key: Any) -> bool:
    module = getattr(key, "__module__", None)
    return not isinstance(module, str) or is_stable_module(module)


def _digest(template: Any, options: Callable[[Any], bytes]) -> bytes:
    function = getattr(template, "_overload_func", None)
    if function is None:
        return _library_digest(modules_of_template(template), template.__name__)
    key = template.key
    if name := getattr(key, "__qualname__", None) or getattr(key, "__name__", None):
        key = f"{getattr(key, '__module__', None)}.{name}"
    elif not isinstance(key, (str, types.Type)):
        raise UnhashableError(f"an overload of {key!r}")
    described = (
        getattr(template, "_attr", None),
        getattr(template, "_jit_options", None),
        getattr(template, "_strict", None),
        template._inline.value,
        template.prefer_literal,
        template.metadata,
    )
    try:
        parts = option_text(described).encode(), fingerprint(function, options=options)
    except UnhashableError:
        return _library_digest({function.__module__}, f"{function.__qualname__} {key}")
    text = f"{template.__name__.partition('_')[0]} {key} ".encode()
    return hashlib.sha256(b"".join((text, *parts))).digest()


def _library_digest(modules: set[str], name: str) -> bytes:
    """Hash a registration by the versions of the installed libraries that it comes from."""
    roots = sorted(_roots(modules))
    versions = {root: _version_of(root) for root in roots}
    if not versions or None in versions.values():
        raise UnhashableError(f"the registration of {name} by {', '.join(roots)}")
    return hashlib.sha256(repr((sorted(versions.items()), name)).encode()).digest()


@cache
def _version_of(root: str) -> str | None:
    """Return the version of an installed library; None for a module of the program."""
    module = sys.modules.get(root)
    version, file = getattr(module, "__version__", None), getattr(module, "__file__", None)
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    if not isinstance(version, str) or file is None:
        return None
    is_installed = any(
        os.path.realpath(file).startswith(os.path.realpath(each)) for each in folders
    )
    return version if is_installed else None
