"""The signatures of the functions that a Cython module publishes, and those of the C files here.

Cython names each capsule of ``__pyx_capi__`` after the type of the C function in it, e.g.
``intptr_t (size_t, int __pyx_skip_dispatch)``. The first line of a function's docstring has its
Python signature, e.g. ``malloc(size_t size) -> intptr_t``.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import ModuleType

__all__ = [
    "CapsuleType",
    "Implementation",
    "PythonSignature",
    "SignatureError",
    "capsule_types",
    "implementations",
    "python_signatures",
]

_SKIP = "int __pyx_skip_dispatch"
_OPTIONAL = "*__pyx_optional_args"


class SignatureError(ImportError):
    """A function of CuPy's module is not what the bridge was written for."""


@dataclass(frozen=True)
class CapsuleType:
    """The C function in a capsule: its types, without the parameters that Cython adds."""

    name: str
    result: str
    parameters: tuple[str, ...]
    skips_dispatch: bool
    """It has Cython's parameter that prevents a call of an overridden method."""
    takes_options: bool
    """Its last parameter points to the number and the values of the optional arguments."""


@dataclass(frozen=True)
class PythonSignature:
    """The parameters of a Python function: types (of Cython), names, and the defaults."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    defaults: dict[str, int]


@dataclass(frozen=True)
class Implementation:
    """A function ``runtime_<name>`` of the C files."""

    name: str
    result: str
    """``PyObject *``, or the type of ``*result``, or ``void``."""
    parameters: tuple[str, ...]
    returns_object: bool


def capsule_types(module: ModuleType) -> dict[str, CapsuleType]:
    """Return the types of all functions in the capsules of a Cython module.

    Raises
    ------
    SignatureError
        If the name of a capsule cannot be parsed.
    """
    found = {}
    for name, capsule in module.__pyx_capi__.items():
        text = _capsule_name(capsule)
        if "(" in text:  # the others are variables
            found[name] = _parse_capsule(name, text)
    return found


def _capsule_name(capsule: Any) -> str:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype = ctypes.c_char_p
    get_name.argtypes = [ctypes.py_object]
    return (get_name(capsule) or b"").decode()


def _parse_capsule(name: str, text: str) -> CapsuleType:
    match = re.fullmatch(r"(.*?) ?\(([^()]*)\)", text)
    if match is None:
        raise SignatureError(f"{name}: expected the type of a C function, got {text!r}")
    result, arguments = match.groups()
    parts = [part.strip() for part in arguments.split(",")]
    parts = [] if parts == ["void"] else parts
    takes_options = bool(parts) and parts[-1].endswith(_OPTIONAL)
    parts = parts[:-1] if takes_options else parts
    skips = bool(parts) and parts[-1] == _SKIP
    parts = parts[:-1] if skips else parts
    return CapsuleType(name, _plain(result), tuple(map(_plain, parts)), skips, takes_options)


def _plain(kind: str) -> str:
    """Return a type without names that only CuPy's own C code knows."""
    if kind.startswith("struct __pyx_obj_"):
        return "PyObject *"
    return "int" if kind == "cudaMemcpyKind" else kind


def python_signatures(module: ModuleType) -> dict[str, PythonSignature]:
    """Return the signatures of all functions of a Cython module, from their docstrings.

    Raises
    ------
    SignatureError
        If a docstring does not begin with a signature.
    """
    found = {}
    for name, value in vars(module).items():
        if type(value).__name__ in ("builtin_function_or_method", "cython_function_or_method"):
            found[name] = _parse_docstring(module, name, value.__doc__ or "")
    return found


def _parse_docstring(module: ModuleType, name: str, text: str) -> PythonSignature:
    match = re.match(rf"{name}\(([^()]*)\)", text)
    if match is None:
        raise SignatureError(f"{name}: expected a signature in the docstring, got {text[:60]!r}")
    parameters, defaults = [], {}
    for part in filter(None, match[1].split(", ")):
        declared, _, default = part.partition("=")
        kind, _, parameter = declared.rpartition(" ")
        parameters.append((kind or "object", parameter))
        if default:
            defaults[parameter] = _value(module, default)
    return PythonSignature(name, tuple(parameters), defaults)


def _value(module: ModuleType, text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else int(getattr(module, text))


def implementations(sources: Iterable[Path]) -> dict[str, Implementation]:
    """Return the functions that C files define as ``runtime_<name>``."""
    pattern = re.compile(r"^(int |PyObject \*)runtime_(\w+)\(([^()]*)\) \{", re.M)
    found = {}
    for source in sources:
        for kind, name, arguments in pattern.findall(source.read_text(encoding="utf-8")):
            found[name] = _parse_definition(name, arguments, returns_object=kind != "int ")
    return found


def _parse_definition(name: str, arguments: str, *, returns_object: bool) -> Implementation:
    declared = [re.match(r"(.*?[ *])(\w+)$", part.strip()) for part in arguments.split(",")]
    pairs = [(match[1].strip(), match[2]) for match in declared if match]
    result = "PyObject *" if returns_object else "void"
    if pairs and pairs[-1][1] == "result":
        result = pairs.pop()[0].removesuffix("*").strip()
    return Implementation(name, result, tuple(kind for kind, _ in pairs), returns_object)
