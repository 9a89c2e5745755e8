"""Views of memory as arrays: ``carray``, ``farray`` and ``array.view(dtype)``.

Of a view whose sizes of elements are known to fit when it compiles, Numba compiles two functions
that compare them at run time, and takes a tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import cgutils, errors, types
from numba.core.imputils import Registry, impl_ret_borrowed
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.target import simt_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llvmlite import ir

__all__ = ["REPLACEMENTS"]

_registry = Registry("nbrt.array_views")


@_registry.lower("array.view", types.Array, types.DTypeSpec)
def _view(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
    from numba.np.arrayobj import array_view, get_itemsize, make_array

    before, after = sig.args[0], sig.return_type
    old, new = get_itemsize(context, before), get_itemsize(context, after)
    is_row = before.ndim == 1 and before.layout == "C"
    if old != new and not (is_row and new and old % new == 0):
        return array_view(context, builder, sig, args)
    array = make_array(before)(context, builder, args[0])
    view = make_array(after)(context, builder)
    for name in view._datamodel._fields:
        if name != "data":
            setattr(view, name, getattr(array, name))
    view.data = builder.bitcast(array.data, view.data.type)
    if old != new:
        size, factor = (
            context.get_constant(types.intp, new),
            context.get_constant(types.intp, old // new),
        )
        count = builder.mul(array.nitems, factor)
        view.nitems, view.itemsize = count, size
        view.shape = cgutils.pack_array(builder, [count])
        view.strides = cgutils.pack_array(builder, [size])
    return impl_ret_borrowed(context, builder, after, view._getvalue())


# After Numba's function for all arrays, which it replaces.
simt_target.target_context.refresh()
simt_target.target_context.install_registry(_registry)


def _array_over(name: str, layout: str) -> Callable[..., Any]:
    """Return ``carray`` or ``farray``: an array over the memory behind a pointer."""

    def implementing(_typingctx: Any, ptr: Any, shape: Any, dtype: Any = None) -> Any:
        given = dtype is None or isinstance(dtype, types.NoneType | types.Omitted)
        element = getattr(ptr, "dtype", None) if given else parse_dtype(dtype)
        if not isinstance(ptr, types.CPointer) or element != ptr.dtype:
            raise errors.NumbaTypeError(
                f"{name} takes a pointer and, if any, the dtype of its elements, got {ptr} and "
                f"{dtype}"
            )
        extents = shape.types if isinstance(shape, types.BaseTuple) else (shape,)
        if not all(isinstance(extent, types.Integer) for extent in extents):
            raise errors.NumbaTypeError(f"{name}: the shape consists of integers, got {shape}")
        array = types.Array(element, len(extents), layout)

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
            from numba.np.arrayobj import np_cfarray

            known = signature(sig.return_type, *sig.args[:2])
            return np_cfarray(context, builder, known, args[:2])

        omitted = types.Omitted(None) if dtype is None else dtype
        return signature(array, ptr, shape, omitted), codegen

    implementing.__name__ = name
    return intrinsic(implementing)  # type: ignore[no-any-return]


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    f"np.numpy_support.{layout.lower()}array": _array_over(f"{layout.lower()}array", layout)
    for layout in "CF"
}
