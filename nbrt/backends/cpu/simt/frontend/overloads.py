"""Functions registered with ``numba.cuda.extending``, for kernels on the CPU.

``overload``, ``register_jitable`` and ``intrinsic`` of numba-cuda register with its own typing.
The dialect pass replaces such a function by a stand-in that is registered with Numba. Code outside
of kernels does not see it.
"""

from __future__ import annotations

import sys
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any

from numba.core import types
from numba.core.typing.templates import infer_global, make_overload_template
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.builtins.registry import stand_in
from nbrt.backends.cpu.simt.target import simt_target
from nbrt.backends.dialect import is_of_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Extension", "extension_of", "is_extended"]

_EXTENDING = "numba.cuda.extending"
_REGISTRIES = ("numba.cuda.typing.templates", "numba.core.typing.templates")
_TARGETS = {"cuda": "cpu"}  # overloads for CUDA precede those for any target


class Extension:
    """A stand-in for a function that has overloads, or for an intrinsic.

    Parameters
    ----------
    function : callable
        The function that kernels call.
    compiled : list
        Dispatchers of the implementations that have been compiled.
    """

    def __init__(self, function: Callable[..., Any], compiled: list[Any]) -> None:
        self.function = function
        self._compiled = compiled

    @property
    def overloads(self) -> dict[Any, Any]:
        """Compile results of all implementations, as a dispatcher has them."""
        return {
            (number, *arguments): result
            for number, dispatcher in enumerate(self._compiled)
            for arguments, result in dispatcher.overloads.items()
        }


_extensions: weakref.WeakKeyDictionary[Any, tuple[int, Extension]] = weakref.WeakKeyDictionary()


def is_extended(value: object) -> bool:
    """Return whether a value is a function registered with numba-cuda's extensions."""
    return _is_intrinsic(value) or (isinstance(value, FunctionType) and any(_templates(value)))


def extension_of(value: Any, compiler: Callable[[Any], Any]) -> Extension | None:
    """Return the stand-in for a function, or None if it is not registered with the extensions.

    Parameters
    ----------
    value : object
        The value of a name in a kernel.
    compiler : callable
        Returns the dispatcher of an implementation.
    """
    if not is_extended(value):
        return None
    templates = list(_templates(value))
    count, known = _extensions.get(value, (-1, None))
    if known is None or count != len(templates):
        if _is_intrinsic(value):
            known = Extension(intrinsic(value._defn), [])
        else:
            known = _overloaded(value.__name__, templates, compiler)
        _extensions[value] = len(templates), known
        # Numba loads new registrations before it compiles, and this happens while it compiles.
        simt_target.target_context.refresh()
    return known


def _is_intrinsic(value: object) -> bool:
    extending = sys.modules.get(_EXTENDING)
    return extending is not None and isinstance(value, extending._Intrinsic)


def _templates(value: object) -> Iterator[Any]:
    """Yield the program's overloads of a function, not numba-cuda's own of NumPy's functions."""
    if is_of_dialect(value):
        return
    for name in _REGISTRIES:
        registry = sys.modules[name].builtin_registry if name in sys.modules else None
        for known, typ in registry.globals if registry else ():
            if known is value:
                yield from (t for t in getattr(typ, "templates", ()) if _is_for_kernels(t, name))


def _is_for_kernels(template: Any, registry: str) -> bool:
    function = getattr(template, "_overload_func", None)
    if function is None:
        return False
    if registry != _REGISTRIES[0]:
        return bool(template.metadata.get("target") == "cuda")
    # numba-cuda also defines the overloads that `register_jitable` makes for a program.
    return not is_of_dialect(function) or function.__module__ == _EXTENDING


def _overloaded(name: str, templates: list[Any], compiler: Callable[[Any], Any]) -> Extension:
    function, compiled = stand_in(name), list[Any]()

    def compile_implementation(implementation: Any) -> Any:
        compiled.append(compiler(implementation))
        return compiled[-1]

    for template in templates:
        target = template.metadata.get("target", "cuda")
        copy = make_overload_template(
            function,
            template._overload_func,
            {},
            template._strict,
            "never",
            template.prefer_literal,
            target=_TARGETS.get(target, target),
        )
        copy._get_jit_decorator = lambda _: lambda: compile_implementation
        infer_global(function, types.Function(copy))
    return Extension(function, compiled)
