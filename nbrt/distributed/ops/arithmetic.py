"""`ArrayMethods`: operators and methods by which a distributed tensor works like an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbrt.distributed.ops import indexing, shapes, statistics
from nbrt.distributed.ops.elementwise import elementwise
from nbrt.distributed.ops.extrema import arg_extreme
from nbrt.distributed.ops.functions import array_function, clip
from nbrt.distributed.ops.operands import checked_call, local_call, made, placed
from nbrt.distributed.ops.propagation import without
from nbrt.distributed.ops.reductions import reduce_by
from nbrt.distributed.ops.ufuncs import array_ufunc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.distributed.dtensor import DTensor
    from nbrt.typing import DTypeLike

__all__ = ["ArrayMethods"]


class ArrayMethods(NDArrayOperatorsMixin):
    """Operators, indexing and NumPy's methods, for a class with ``_local`` and ``_spec``.

    What an operation returns is a distributed tensor whose placements follow from its operands';
    the modules of this package say how. Parameters are those of `numpy.ndarray`'s methods.
    """

    __slots__ = ()

    # -- NumPy's protocols -------------------------------------------------------------------------

    def __array_ufunc__(
        self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        return array_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return array_function(func, args, kwargs)

    # -- elements ----------------------------------------------------------------------------------

    def __getitem__(self: Any, index: Any) -> DTensor:
        return indexing.getitem(self, index)

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        indexing.setitem(self, index, value)

    def __iter__(self: Any) -> Iterator[DTensor]:
        rows = range(len(self))
        source = placed(self, without(self.placements, [0]))  # once, and not for each of them
        return (source[row] for row in rows)

    def astype(self: Any, dtype: DTypeLike, *, copy: bool = True) -> DTensor:
        """Return the tensor in another dtype; with ``copy=False``, itself if it has that one.

        Terms of a reduction are reduced first.
        """
        kind = checked_call(np.dtype, dtype)
        if kind == self.dtype:
            return elementwise(np.copy, [self]) if copy else self
        source = placed(self, without(self.placements, partial=True))
        return made(
            source, local_call(source, source._local.astype, kind), source.placements, self.shape
        )

    def copy(self: Any) -> DTensor:
        """Return a tensor of the same parts and placements, in memory of its own."""
        copied: DTensor = self.__deepcopy__({})
        return copied

    __copy__ = copy

    # -- shapes ------------------------------------------------------------------------------------

    @property
    def T(self: Any) -> DTensor:  # noqa: N802  # NumPy's name
        """The tensor with its dimensions reversed."""
        return shapes.transpose(self)

    @property
    def mT(self: Any) -> DTensor:  # noqa: N802  # NumPy's name
        """The tensor with its last two dimensions exchanged."""
        return shapes.swapaxes(self, -1, -2)

    @property
    def real(self: Any) -> DTensor:
        """The real part."""
        return elementwise(np.real, [self])

    @property
    def imag(self: Any) -> DTensor:
        """The imaginary part."""
        return elementwise(np.imag, [self])

    def transpose(self: Any, *axes: Any) -> DTensor:
        """Return the tensor with its dimensions in another order, reversed by default."""
        order = axes[0] if len(axes) == 1 else axes
        return shapes.transpose(self, order if order != () else None)

    def swapaxes(self: Any, axis1: int, axis2: int) -> DTensor:
        """Return the tensor with two dimensions exchanged."""
        return shapes.swapaxes(self, axis1, axis2)

    def squeeze(self: Any, axis: int | Sequence[int] | None = None) -> DTensor:
        """Return the tensor without dimensions of one element."""
        return shapes.squeeze(self, axis)

    def reshape(self: Any, *shape: Any) -> DTensor:
        """Return the tensor with another shape; see `nbrt.distributed.ops.shapes`."""
        return shapes.reshape(self, shape[0] if len(shape) == 1 else shape)

    def ravel(self: Any) -> DTensor:
        """Return the tensor as one dimension."""
        return shapes.reshape(self, -1)

    def clip(self: Any, min: Any = None, max: Any = None, out: Any = None) -> DTensor:
        """Return the tensor with elements outside [min, max] set to its ends."""
        return clip(self, min, max, out)

    def round(self: Any, decimals: int = 0, out: Any = None) -> DTensor:
        """Return the elements rounded to a number of decimals."""
        return elementwise(np.round, [self], out=out, decimals=decimals)

    def conj(self: Any) -> DTensor:
        """Return the complex conjugate."""
        return elementwise(np.conjugate, [self])

    # -- reductions --------------------------------------------------------------------------------

    def sum(
        self: Any,
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        keepdims: bool = False,
    ) -> DTensor:
        """Return the sum along axes; `Partial` along dimensions of the mesh that cut them."""
        return reduce_by(np.add, self, axis, dtype, out, keepdims)

    def prod(
        self: Any,
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        keepdims: bool = False,
    ) -> DTensor:
        """Return the product along axes."""
        return reduce_by(np.multiply, self, axis, dtype, out, keepdims)

    def min(
        self: Any, axis: int | Sequence[int] | None = None, out: Any = None, keepdims: bool = False
    ) -> DTensor:
        """Return the minimum along axes."""
        return reduce_by(np.minimum, self, axis, None, out, keepdims)

    def max(
        self: Any, axis: int | Sequence[int] | None = None, out: Any = None, keepdims: bool = False
    ) -> DTensor:
        """Return the maximum along axes."""
        return reduce_by(np.maximum, self, axis, None, out, keepdims)

    def all(
        self: Any, axis: int | Sequence[int] | None = None, out: Any = None, keepdims: bool = False
    ) -> DTensor:
        """Return whether all elements along axes are true."""
        return reduce_by(np.logical_and, self, axis, None, out, keepdims)

    def any(
        self: Any, axis: int | Sequence[int] | None = None, out: Any = None, keepdims: bool = False
    ) -> DTensor:
        """Return whether any element along axes is true."""
        return reduce_by(np.logical_or, self, axis, None, out, keepdims)

    def mean(
        self: Any,
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        keepdims: bool = False,
    ) -> DTensor:
        """Return the mean along axes."""
        return statistics.mean(self, axis, dtype, out, keepdims)

    def var(
        self: Any,
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: float = 0,
        keepdims: bool = False,
    ) -> DTensor:
        """Return the variance along axes."""
        return statistics.var(self, axis, dtype, out, ddof, keepdims)

    def std(
        self: Any,
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: float = 0,
        keepdims: bool = False,
    ) -> DTensor:
        """Return the standard deviation along axes."""
        return statistics.std(self, axis, dtype, out, ddof, keepdims)

    def argmax(
        self: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False
    ) -> DTensor:
        """Return the index of the first maximum."""
        return arg_extreme(np.maximum, self, axis, out, keepdims)

    def argmin(
        self: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False
    ) -> DTensor:
        """Return the index of the first minimum."""
        return arg_extreme(np.minimum, self, axis, out, keepdims)
