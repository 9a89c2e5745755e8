"""`ArrayMethods`: the operators and methods of arrays for distributed tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbrt.distributed.ops import indexing, shapes, statistics
from nbrt.distributed.ops.elementwise import astype, elementwise
from nbrt.distributed.ops.extrema import arg_extreme
from nbrt.distributed.ops.functions import (
    array_function,
    array_ufunc,
    clip,
    logical_reduction,
    order_reduction,
    reduction,
)
from nbrt.distributed.ops.operands import redistribute_to
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.sharded_array import ShardedArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from nbrt.typing import DTypeLike

__all__ = ["ArrayMethods"]


class ArrayMethods(ShardedArray, NDArrayOperatorsMixin):
    """Operators, indexing and NumPy's methods of a distributed tensor.

    The placements of results follow from those of operands, by the rules in the modules of this
    package. Parameters are those of the methods of `numpy.ndarray`.
    """

    # -- NumPy's protocols -------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return array_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return array_function(func, args, kwargs)

    # -- elements ----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Self:
        return indexing.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        indexing.setitem(self, index, value)

    def __iter__(self) -> Iterator[Self]:
        rows = range(len(self))
        source = redistribute_to(self, replicate_dims(self.placements, [0]))  # once for all rows
        return (source[row] for row in rows)

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> Self:
        """Return the tensor in another dtype; with ``copy=False``, itself if it has that one.

        Terms of a reduction are reduced first.
        """
        return astype(self, dtype, copy)

    # -- shapes ------------------------------------------------------------------------------------

    @property
    def T(self) -> Self:  # noqa: N802  # NumPy's name
        """The tensor with its dimensions reversed."""
        return shapes.transpose(self)

    @property
    def mT(self) -> Self:  # noqa: N802  # NumPy's name
        """The tensor with its last two dimensions exchanged."""
        return shapes.swapaxes(self, -1, -2)

    @property
    def real(self) -> Self:
        """The real part."""
        return elementwise(np.real, self)

    @property
    def imag(self) -> Self:
        """The imaginary part."""
        return elementwise(np.imag, self)

    def transpose(self, *axes: Any) -> Self:
        """Return the tensor with its dimensions in another order, reversed by default."""
        order = axes[0] if len(axes) == 1 else axes
        return shapes.transpose(self, order if order != () else None)

    swapaxes = shapes.swapaxes
    squeeze = shapes.squeeze

    def reshape(self, *shape: Any) -> Self:
        """Return the tensor with another shape; see `nbrt.distributed.ops.shapes`."""
        return shapes.reshape(self, shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Self:
        """Return the tensor as one dimension."""
        return shapes.reshape(self, -1)

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Self:
        """Return the tensor with elements outside [min, max] set to its ends."""
        return clip(self, min, max, out)

    def round(self, decimals: int = 0, out: Any = None) -> Self:
        """Return the elements rounded to a number of decimals."""
        return elementwise(np.round, self, out=out, decimals=decimals)

    def conj(self) -> Self:
        """Return the complex conjugate."""
        return elementwise(np.conjugate, self)

    # -- reductions --------------------------------------------------------------------------------

    sum: Callable[..., Self] = reduction(np.add)
    prod: Callable[..., Self] = reduction(np.multiply)
    min: Callable[..., Self] = order_reduction(np.minimum)
    max: Callable[..., Self] = order_reduction(np.maximum)
    all: Callable[..., Self] = logical_reduction(np.logical_and)
    any: Callable[..., Self] = logical_reduction(np.logical_or)
    mean = statistics.mean
    var = statistics.var
    std = statistics.std

    def argmax(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Self:
        """Return the index of the first maximum."""
        return arg_extreme(np.maximum, self, axis, out, keepdims)

    def argmin(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Self:
        """Return the index of the first minimum."""
        return arg_extreme(np.minimum, self, axis, out, keepdims)
