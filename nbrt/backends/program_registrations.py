"""Registrations of a program with the compilers, in Numba's registries and in those of numba-cuda.

Typing templates, code and data models of the program stand in the same lists as thousands of those
of Numba. A registration is of the program if one of its functions, or of the types that it is for,
comes from a module that is not of Numba.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

from nbrt.backends.stable_modules import is_stable_module

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "count_registrations",
    "is_of_program",
    "is_program_module",
    "lowering_registries",
    "models_of_program",
    "modules_of",
    "modules_of_template",
    "registered_by_program",
    "typing_registries",
]

_TYPINGS = ("functions", "attributes", "globals")
_LOWERINGS = ("functions", "getattrs", "setattrs", "casts", "constants")

_NUMBA = (
    ("numba.core.typing.templates", "builtin_registry"),
    ("numba.core.imputils", "builtin_registry"),
)
_CUDA_TYPINGS = (
    ("numba.cuda.typing.templates", "builtin_registry"),
    ("numba.cuda.cudadecl", "registry"),
)
_CUDA_LOWERINGS = (
    ("numba.cuda.core.imputils", "builtin_registry"),
    ("numba.cuda.cudaimpl", "registry"),
)
_CUDA_CONTEXTS = "numba.cuda.descriptor"
_CUDA_MODELS = "numba.cuda.models"

_scanned: dict[int, tuple[list[Any], int, list[Any]]] = {}
"""By the id of a list of registrations: the list, how many were examined, those of the program."""


def typing_registries(*, cuda: bool) -> list[Any]:
    """Return the registries of typing templates that the program has imported.

    Parameters
    ----------
    cuda : bool
        Those of numba-cuda, and the program's own that it has installed there, or those of Numba.
    """
    if not cuda:
        return _loaded(_NUMBA[:1])
    return _with_installed(_loaded(_CUDA_TYPINGS), "_typingctx")


def lowering_registries(*, cuda: bool) -> list[Any]:
    """Return the registries of code that the program has imported; see `typing_registries`."""
    if not cuda:
        return _loaded(_NUMBA[1:])
    return _with_installed(_loaded(_CUDA_LOWERINGS), "_targetctx")


def _loaded(places: tuple[tuple[str, str], ...]) -> list[Any]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in places)
    return [registry for registry in found if registry is not None]


def _with_installed(known: list[Any], context: str) -> list[Any]:
    """Add the registries that are installed in a context of numba-cuda, if it has been made."""
    target = getattr(sys.modules.get(_CUDA_CONTEXTS), "cuda_target", None)
    installed = getattr(getattr(target, context, None), "_registries", ())
    numbas = _loaded(_NUMBA)
    return [*known, *(each for each in installed if each not in known and each not in numbas)]


def count_registrations() -> int:
    """Return the number of registrations with numba-cuda; a change means that there are more."""
    lists = (
        getattr(registry, name)
        for registries, names in (
            (typing_registries(cuda=True), _TYPINGS),
            (lowering_registries(cuda=True), _LOWERINGS),
        )
        for registry in registries
        for name in names
    )
    return sum(map(len, lists)) + len(_cuda_models())


def registered_by_program(registry: Any, name: str) -> list[Any]:
    """Return the registrations of the program in one list of a registry.

    Parameters
    ----------
    registry : Registry
        Of typing templates or of code.
    name : str
        The list: ``"functions"``, ``"globals"``, ``"getattrs"`` ...
    """
    registered = getattr(registry, name, [])
    # Numba has two thousand, and a kernel's key needs all those of the program.
    _, count, found = _scanned.get(id(registered), (None, 0, []))
    if count != len(registered):
        new = registered[count:] if count < len(registered) else registered
        found = [*(found if new is not registered else ()), *filter(is_of_program, new)]
        _scanned[id(registered)] = registered, len(registered), found
    return found


def models_of_program() -> dict[Any, Any]:
    """Return the data models that the program has registered with numba-cuda, by type class."""
    return {
        kind: model
        for kind, model in _cuda_models().items()
        if is_program_module(_module_of_type(kind))
        or is_program_module(getattr(model, "__module__", None))
    }


def _cuda_models() -> dict[Any, Any]:
    manager = getattr(sys.modules.get(_CUDA_MODELS), "cuda_data_manager", None)
    models: dict[Any, Any] = getattr(manager, "_handlers", {})
    return models


def is_of_program(registration: Any) -> bool:
    """Return whether a registration is of the program, or of a library other than Numba.

    Parameters
    ----------
    registration : class or tuple
        A typing template; a value and its type; code with its key and types.
    """
    if isinstance(registration, type):
        return any(map(is_program_module, modules_of_template(registration)))
    if not isinstance(registration[0], FunctionType) or hasattr(registration[1], "templates"):
        templates = getattr(registration[1], "templates", None)
        if templates is None:
            return any(is_program_module(_module_of(each)) for each in registration)
        return any(map(is_of_program, templates))
    modules = modules_of(registration[0])
    if any(name.endswith(".extending") for name in modules):
        modules |= {_module_of_type(typ) for typ in registration[-1]}
    return any(map(is_program_module, modules))


def _module_of(value: Any) -> str:
    """Return the module of a function or class, or of the class of another value."""
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__


def _module_of_type(typ: Any) -> str:
    """Return the module of a type in a registration; "" for a class made by a call of `type`.

    Such a class of types has the module of `abc.ABCMeta`; those of Numba have statements.
    """
    module = _module_of(typ)
    return "" if module == "abc" else module


@cache
def is_program_module(name: str | None) -> bool:
    """Return whether a module is neither of nbrt nor of Numba, NumPy or the standard library."""
    return (name or "").partition(".")[0] != "nbrt" and not is_stable_module(name)


def modules_of_template(template: Any) -> set[str]:
    """Return the modules that the meaning of a typing template comes from."""
    for name in ("_overload_func", "_definition_func"):
        function = getattr(template, name, None)
        if isinstance(function, FunctionType):
            return modules_of(function)
        if function is not None:  # such as a partial
            return {_module_of(function)}
    found = {base.__module__ for base in template.__mro__}
    if template.__module__ != "abc" and not template.__module__.endswith(".extending"):
        return found
    # Made by `type_callable`, in a call of `abc.ABCMeta`, or by `make_attribute_wrapper`.
    members = (getattr(each, "__func__", each) for each in vars(template).values())
    functions = [each for each in members if isinstance(each, FunctionType)]
    key = getattr(template, "key", None)
    keys = {_module_of_type(key)} if isinstance(key, type) else set[str]()
    return found.union(keys, *map(modules_of, functions))


def modules_of(function: FunctionType) -> set[str]:
    """Return the modules of a function and of functions in its closure, which it may decorate."""
    if function.__closure__ is None:
        return {function.__module__ or "builtins"}
    return {each.__module__ or "builtins" for each in _with_decorated(function)}


def _with_decorated(function: FunctionType) -> Iterator[FunctionType]:
    pending, seen = [function], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if current is not function and is_program_module(current.__module__):
            continue
        for cell in current.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # empty
                continue
            if isinstance(content, FunctionType):
                pending.append(content)
