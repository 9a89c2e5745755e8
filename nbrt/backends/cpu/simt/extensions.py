"""The program's registrations with numba-cuda, for the contexts of kernels on the CPU.

A program extends the CUDA target through the registries of numba-cuda, or through Numba's own
functions with ``target="cuda"``. `Extensions` copies these registrations, and none of numba-cuda
itself. Code outside of kernels does not see them.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from numba.core import types
from numba.core.datamodel import default_manager
from numba.core.datamodel.manager import DataModelManager
from numba.core.imputils import Registry as LoweringRegistry
from numba.core.typing import templates

from nbrt.backends.program_registrations import (
    count_registrations,
    is_of_program,
    is_program_module,
    lowering_registries,
    models_of_program,
    modules_of_template,
    registered_by_program,
    typing_registries,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Extensions", "is_for_other_target", "type_of_constant"]

_LOWERINGS = ("functions", "getattrs", "setattrs", "casts", "constants")
_OTHERS = ("cpu", "generic")
"""Targets of overloads that numba-cuda also registers with Numba."""


class Extensions:
    """Copies of the program's registrations for CUDA.

    Parameters
    ----------
    target : str
        Name of the target that the overloads are copied for.

    Attributes
    ----------
    typings, lowerings : Registry
        Numba's registries of typing templates and of code.
    models : DataModelManager
        Data models of types: those for CUDA, and Numba's.
    overloads : list of function
        The functions that choose the implementations of overloads.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.typings = templates.Registry()
        self.lowerings = LoweringRegistry(target)
        self._models = DataModelManager()
        self.models = self._models.chain(default_manager)
        self.overloads: list[Any] = []
        self._copied: dict[tuple[int, str], int] = {}
        self._copies: dict[Any, Any] = {}
        self._stand_ins: dict[Any, Any] = {}
        self._extended: list[tuple[Any, Any]] = []

    def stand_for(self, functions: Mapping[Any, Any]) -> None:
        """Let functions that stand for others have the overloads of those.

        Parameters
        ----------
        functions : mapping
            Function of Python or NumPy -> the function that kernels call in its place.
        """
        self._stand_ins.update(functions)
        for value, template in self._extended:
            self._extend_stand_in(value, template)

    def count(self) -> int:
        """Return the number of registrations with numba-cuda; a change means that one is new."""
        return count_registrations()

    def update(self) -> None:
        """Copy the registrations that are new."""
        for kind, model in models_of_program().items():
            self._models.register(kind, model)
        for registry in lowering_registries(cuda=True):
            for name in _LOWERINGS:
                getattr(self.lowerings, name).extend(self._new(registry, name))
        for cuda in (True, False):
            for registry in typing_registries(cuda=cuda):
                self._update_typings(registry, cuda)

    def _update_typings(self, registry: Any, cuda: bool) -> None:
        for name in ("functions", "attributes"):
            for each in self._new(registry, name):
                copy = self._copy(each, cuda)
                if copy is not None:
                    getattr(self.typings, name).append(copy)
        for value, typ in self._new(registry, "globals"):
            if not hasattr(typ, "templates"):
                self.typings.globals += [(value, typ)] if cuda else []
                continue
            for template in filter(is_of_program, typ.templates):
                copy = self._copy(template, cuda)
                if copy is not None:
                    self.typings.globals.append((value, types.Function(copy)))
                elif cuda or is_for_other_target(template):
                    continue
                self._extended.append((value, copy or template))
                self._extend_stand_in(value, copy or template)

    def _extend_stand_in(self, value: Any, template: Any) -> None:
        stand_in = self._stand_ins.get(value) if isinstance(value, Hashable) else None
        if stand_in is None:
            return
        members = {"key": stand_in}
        if not hasattr(template, "_overload_func"):
            members["get_impl_key"] = lambda _self, _signature: template.key
        copy = type(template)(template.__name__, (template,), members)
        self.typings.globals.append((stand_in, types.Function(copy)))

    def _new(self, registry: Any, name: str) -> list[Any]:
        """Return the program's registrations of a list that have not been copied yet."""
        found = registered_by_program(registry, name)
        key = id(registry), name
        start = self._copied.get(key, 0)
        self._copied[key] = len(found)
        return found[start:]

    def _copy(self, template: Any, cuda: bool) -> Any:
        """Return the template for kernels, or None if there is another that they find."""
        if template not in self._copies:
            self._copies[template] = self._made(template, cuda)
            if hasattr(template, "_overload_func"):
                self.overloads.append(template._overload_func)
        return self._copies[template]

    def _made(self, template: Any, cuda: bool) -> Any:
        metadata = dict(getattr(template, "metadata", None) or {})
        target = metadata.pop("target", "cuda" if cuda else "generic")
        if target in _OTHERS or (not cuda and target != "cuda"):
            return None
        metadata["target"] = self._target
        if hasattr(template, "_definition_func"):
            return templates.make_intrinsic_template(
                template.key,
                template._definition_func,
                template.__name__,
                prefer_literal=template.prefer_literal,
                kwargs=metadata,
            )
        function = getattr(template, "_overload_func", None)
        if function is None:
            return template
        inline = "never"  # LLVM inlines them
        if hasattr(template, "_attr"):
            is_method = template.is_method
            base = _Method if is_method else _Attribute
            return templates.make_overload_attribute_template(
                *(template.key, template._attr, function, inline, template.prefer_literal, base),
                **metadata,
            )
        options = {**template._jit_options, "inline": template._inline.value}
        return templates.make_overload_template(
            *(template.key, function, options, template._strict, inline, template.prefer_literal),
            **metadata,
        )


_Attribute: Any = templates._OverloadAttributeTemplate
_Method: Any = templates._OverloadMethodTemplate


def type_of_constant(value: object) -> Any:
    """Return the type of a value by the program's functions for CUDA, or None if there is none."""
    typing = sys.modules.get("numba.cuda.typing.typeof")
    if typing is None:
        return None
    handler = typing.typeof_impl.dispatch(type(value))
    if not is_program_module(getattr(handler, "__module__", None)):
        return None
    return handler(value, typing._TypeofContext(typing.Purpose.constant))


def is_for_other_target(template: Any) -> bool:
    """Return whether a template is an overload of the program that the CUDA target does not see."""
    metadata = getattr(template, "metadata", None)
    if not metadata or metadata.get("target") not in ("cpu", "cuda"):
        return False
    return any(map(is_program_module, modules_of_template(template)))
