"""Overloads that the program has registered with Numba, as a part of the key of compiled code.

A kernel may use an overload of a function, method or attribute of NumPy or Numba without a name
that leads to it. So every key depends on every overload of the program.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from numba.core import types

from nbrt.backends.captures import is_stable_module
from nbrt.backends.cuda.target_options import hash_options, option_text
from nbrt.backends.fingerprint import UnhashableError, fingerprint

__all__ = ["hash_overloads"]

_REGISTRIES = ("numba.core.typing.templates", "numba.cuda.typing.templates")


def hash_overloads() -> bytes:
    """Hash the overloads of the program.

    Returns
    -------
    bytes
        The digest; it does not depend on the order of registration. Empty without overloads.

    Raises
    ------
    UnhashableError
        If the meaning of one cannot be hashed for certain.
    """
    digests = sorted(map(_hash_template, _templates()))
    return hashlib.sha256(b"".join(digests)).digest() if digests else b""


def _templates() -> list[Any]:
    found: list[Any] = []
    for name in _REGISTRIES:
        registry = getattr(sys.modules.get(name), "builtin_registry", None)
        if registry is not None:
            found += filter(_is_foreign, (*registry.functions, *registry.attributes))
    return found


def _is_foreign(template: Any) -> bool:
    source = getattr(template, "_overload_func", None) or template
    module = getattr(source, "__module__", None) or "builtins"
    return module.partition(".")[0] != "nbrt" and not is_stable_module(module)


def _hash_template(template: Any) -> bytes:
    function = getattr(template, "_overload_func", None)
    if function is None:
        raise UnhashableError(f"the typing template {template!r}")
    key = template.key
    if name := getattr(key, "__qualname__", None) or getattr(key, "__name__", None):
        key = f"{getattr(key, '__module__', None)}.{name}"
    elif not isinstance(key, (str, types.Type)):
        raise UnhashableError(f"an overload of {key!r}")
    options = (
        getattr(template, "_attr", None),
        getattr(template, "_jit_options", None),
        getattr(template, "_strict", None),
        template._inline.value,
        template.prefer_literal,
        template.metadata,
    )
    text = f"{template.__name__.partition('_')[0]} {key} {option_text(options)}"
    parts = hashlib.sha256(text.encode()).digest(), fingerprint(function, options=hash_options)
    return hashlib.sha256(b"".join(parts)).digest()
