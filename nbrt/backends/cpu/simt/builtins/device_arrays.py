"""Device arrays that a kernel captures: it reads and writes their memory through the address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import types
from numba.core.datamodel.models import StructModel
from numba.core.imputils import lower_constant
from numba.core.typing.typeof import Purpose, typeof
from numba.extending import intrinsic, register_model

from nbrt.backends.device_arrays import host_view, is_device_array
from nbrt.errors import DeviceMismatchError

if TYPE_CHECKING:
    import numpy as np
    from llvmlite import ir

__all__ = ["array_of", "captured_array"]


class _CapturedArrayType(types.Type):
    """The type of a captured array before `array_of` makes an array of it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        super().__init__(name=f"captured {array}")


@register_model(_CapturedArrayType)
class _CapturedArrayModel(StructModel):
    def __init__(self, manager: Any, fe_type: _CapturedArrayType) -> None:
        super().__init__(manager, fe_type, [("array", fe_type.array)])


class _CapturedArray:
    """A captured array as a constant in Numba IR.

    Numba makes a constant array read-only, and its elements a part of the code.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        kind = typeof(array, Purpose.constant)
        self._numba_type_ = _CapturedArrayType(kind.copy(readonly=not array.flags.writeable))


def captured_array(value: Any, name: str) -> Any:
    """Return the argument of `array_of` for a device array that a kernel captures.

    Parameters
    ----------
    value : object
        The value of a global, a closure variable or an attribute.
    name : str
        Its name, for the error.

    Returns
    -------
    object or None
        None for a value that is not a device array.

    Raises
    ------
    DeviceMismatchError
        If the memory is on a GPU.
    """
    if not is_device_array(value):
        return None
    array = host_view(value)
    if array is None:
        raise DeviceMismatchError(
            f"expected the array {name!r}, which a kernel captures, in host memory, got a CUDA "
            f"array of type {type(value).__name__}; copy it with nbrt.to(array, 'cpu')"
        )
    return _CapturedArray(array)


@lower_constant(_CapturedArrayType)
def _lower_constant(
    context: Any, builder: ir.IRBuilder, typ: _CapturedArrayType, value: _CapturedArray
) -> ir.Value:
    array = value.array
    # A dynamic address: code with it is not stored on disk.
    address = context.add_dynamic_addr(builder, array.ctypes.data, info="device array")
    found = context.make_array(typ.array)(context, builder)
    context.populate_array(
        found,
        data=builder.bitcast(address, found.data.type),
        shape=[context.get_constant(types.intp, extent) for extent in array.shape],
        strides=[context.get_constant(types.intp, stride) for stride in array.strides],
        itemsize=context.get_constant(types.intp, array.itemsize),
        meminfo=None,
    )
    whole = context.make_helper(builder, typ)
    whole.array = found._getvalue()
    return whole._getvalue()


@intrinsic
def array_of(_typingctx: Any, captured: Any) -> Any:
    """Return the array that a captured array is."""
    if not isinstance(captured, _CapturedArrayType):
        return None

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        return builder.extract_value(args[0], 0)

    return captured.array(captured), codegen
