"""Arguments whose value an extension of the program has prepared, as numba-cuda's launches do it.

A launch of numba-cuda passes an argument of a type of the program as the value of another type,
whose members the kernel then takes for those of the argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import errors, types
from numba.core.pythonapi import NativeValue, unbox
from numba.extending import register_model

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PreparedArgument", "PreparedType", "kernel_types"]


class PreparedType(types.Type):
    """The type of a prepared argument outside of the kernel.

    Parameters
    ----------
    kernel_type : numba type
        The type that the kernel is compiled for.
    given : numba type
        The type of the value that is passed.
    """

    def __init__(self, kernel_type: Any, given: Any) -> None:
        self.kernel_type = kernel_type
        self.given = given
        super().__init__(name=f"{kernel_type} given as {given}")

    @property
    def key(self) -> Any:
        """Both types."""
        return self.kernel_type, self.given


class PreparedArgument:
    """A value of one type in the place of an argument of another.

    Parameters
    ----------
    kernel_type : numba type
        The type that the kernel is compiled for, such as one of the program.
    given : numba type
        The type of `value`, with members of the same sizes.
    value : object
        A scalar, a NumPy array, or a tuple of such.
    """

    __slots__ = ("_numba_type_", "value")

    def __init__(self, kernel_type: Any, given: Any, value: object) -> None:
        self._numba_type_ = PreparedType(kernel_type, given)
        self.value = value


def kernel_types(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Return the types that a kernel is compiled for, given the types of a launch's arguments."""
    return tuple(each.kernel_type if isinstance(each, PreparedType) else each for each in arguments)


@register_model(PreparedType)
def _model(manager: Any, fe_type: PreparedType) -> Any:
    return manager.lookup(fe_type.kernel_type)


@unbox(PreparedType)
def _unbox(typ: PreparedType, obj: Any, c: Any) -> Any:
    value = c.pyapi.object_getattr_string(obj, "value")
    native = c.unbox(typ.given, value)
    c.pyapi.decref(value)
    members = c.context.get_arg_packer([typ.given]).as_arguments(c.builder, [native.value])
    packer = c.context.get_arg_packer([typ.kernel_type])
    wanted = packer.argument_types
    if len(members) != len(wanted):
        raise errors.NumbaTypeError(
            f"an argument of type {typ.kernel_type} has {len(wanted)} members, and the extension "
            f"prepares it as {typ.given} with {len(members)}"
        )
    cast = [
        _cast(c.builder, member, kind, typ) for member, kind in zip(members, wanted, strict=True)
    ]
    (whole,) = packer.from_arguments(c.builder, cast)
    return NativeValue(whole, is_error=native.is_error, cleanup=native.cleanup)


def _cast(builder: ir.IRBuilder, member: ir.Value, wanted: ir.Type, typ: PreparedType) -> ir.Value:
    """Return the bits of a member as the type that the kernel takes them for."""
    if member.type == wanted:
        return member
    if isinstance(wanted, ir.PointerType) and member.type == ir.IntType(64):
        return builder.inttoptr(member, wanted)
    if isinstance(wanted, ir.PointerType) and isinstance(member.type, ir.PointerType):
        return builder.bitcast(member, wanted)
    raise errors.NumbaTypeError(
        f"an argument of type {typ.kernel_type} has a member of LLVM's type {wanted}, and the "
        f"extension prepares it as {typ.given} with {member.type} in its place"
    )
