"""Vector types: ``cuda.float32x4`` and others, by element type and length.

A constructor takes numbers and shorter vectors of the same element type, which together have as
many elements as the vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import cgutils, types
from numba.core.datamodel.models import StructModel
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, make_attribute_wrapper, register_model

from nbrt.backends.cpu.simt.builtins.registry import Values, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llvmlite import ir

__all__ = ["REPLACEMENTS", "TYPES", "VectorType"]

_ELEMENTS = (
    *(types.int8, types.int16, types.int32, types.int64),
    *(types.uint8, types.uint16, types.uint32, types.uint64),
    *(types.float32, types.float64),
)


class VectorType(types.Type):
    """Numba type of vectors of one element type and length.

    Parameters
    ----------
    element : numba type
        Type of the elements.
    length : int
        Number of elements, 1 to 4.
    """

    def __init__(self, element: Any, length: int) -> None:
        self.element = element
        self.fields = "xyzw"[:length]
        super().__init__(name=f"{element}x{length}")


def _is_scalar(typ: Any) -> bool:
    return isinstance(typ, types.Integer | types.Float | types.Boolean)


def _make_type(element: Any, length: int) -> Any:
    # One class per type: Numba finds data models and attributes by class.
    # Without `__module__` the class has the module "abc", as types that programs make have, and no
    # kernel of the process would have a key for the disk cache.
    kind = type(f"{element}x{length}", (VectorType,), {"__module__": __name__})

    @register_model(kind)
    class Model(StructModel):
        def __init__(self, manager: Any, fe_type: Any) -> None:
            super().__init__(manager, fe_type, [(name, element) for name in fe_type.fields])

    vector = kind(element, length)
    for name in vector.fields:
        make_attribute_wrapper(kind, name, name)
    return vector


def _make_constructor(vector: Any) -> Callable[..., Any]:
    constructor = stand_in(vector.name)

    class Template(AbstractTemplate):
        key = constructor

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            parameters, length = [], 0
            for arg in args:
                if isinstance(arg, VectorType) and arg.element == vector.element:
                    parameters.append(arg)
                    length += len(arg.fields)
                elif _is_scalar(arg):
                    parameters.append(vector.element)
                    length += 1
                else:
                    return None
            if kws or length != len(vector.fields):
                return None
            return signature(vector, *parameters)

    infer_global(constructor, types.Function(Template))

    @lower_builtin(constructor, types.VarArg(types.Any))
    def construct(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        parts: list[ir.Value] = []
        for typ, arg in zip(sig.args, args, strict=True):
            if isinstance(typ, VectorType):
                proxy = cgutils.create_struct_proxy(typ)(context, builder, arg)
                parts.extend(getattr(proxy, name) for name in typ.fields)
            else:
                parts.append(arg)
        result = cgutils.create_struct_proxy(vector)(context, builder)
        for name, part in zip(vector.fields, parts, strict=True):
            setattr(result, name, part)
        return result._getvalue()

    return constructor


TYPES: dict[str, Any] = {}
"""Name of a vector type -> the type, for arrays with such elements."""

for _element in _ELEMENTS:
    for _length in (1, 2, 3, 4):
        TYPES[f"{_element}x{_length}"] = _make_type(_element, _length)

REPLACEMENTS: dict[str, Callable[..., Any]] = {
    name: _make_constructor(vector) for name, vector in TYPES.items()
}
