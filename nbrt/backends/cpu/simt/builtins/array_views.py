"""``array.view(dtype)`` where it is known at compile time that the sizes of the elements fit.

Numba compiles two functions that compare the sizes at run time, and takes a tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import cgutils, types
from numba.core.imputils import Registry

from nbrt.backends.cpu.simt.target import simt_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite import ir

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
    return view._getvalue()


# After Numba's function for all arrays, which it replaces.
simt_target.target_context.refresh()
simt_target.target_context.install_registry(_registry)
