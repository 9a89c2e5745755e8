"""Random draws on fake devices: parameters are checked as on the real device, nothing is drawn."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.program import example_of, key_of
from nbrt.backends.fake.versions import Version
from nbrt.backends.random_filler import requested_fills
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt.backends.draw import Draw
    from nbrt.backends.fake.versions import OnVersion
    from nbrt.backends.queue import Queue
    from nbrt.backends.random_filler import DrawRequest, FillLaunch

__all__ = ["FakeFiller", "UnknownValues"]


class FakeFiller:
    """Checks the draws of one kind of fake device.

    Parameters
    ----------
    kind : {"cpu", "cuda"}
        The kind.
    """

    def __init__(self, kind: str) -> None:
        from nbrt_kernels.random.requests import fills_of

        self._request: DrawRequest = functools.partial(fills_of, gpu=kind == "cuda")

    def draw(self, queue: Queue, out: Any, draw: Draw, on_version: OnVersion | None = None) -> None:
        """Check a draw as `RandomFiller.draw` does; fill nothing.

        Conditions on the values of arrays of parameters hold, because these have no values.

        Parameters
        ----------
        queue, out, draw
            As for `RandomFiller.draw`.
        on_version : callable, optional
            Called with each fill kernel that the draw launches, again at each draw.

        Raises
        ------
        ArgumentError
            If a parameter is out of range, or `out` has gaps.
        ArgumentTypeError
            If there is no such draw for the dtype of `out`.
        """
        layout = out.layout if isinstance(out, FakeArray) else out
        if not layout.flags.c_contiguous:
            raise ArgumentError("expected a C-contiguous array to fill, got one with gaps; copy it")
        memo = draw.memo
        fills = None if memo is None else memo.get(self)
        if fills is None:
            parameters = tuple(map(_without_values, draw.parameters))
            fills = list(requested_fills(self._request, draw._replace(parameters=parameters)))
            if memo is not None:
                memo[self] = fills
        if on_version is not None and layout.size:
            for fill in fills:
                on_version(_version(queue.index, layout, draw.device_state, fill))
        if not isinstance(queue, SynchronousQueue):
            arrays = (value for value in draw.arrays if isinstance(value, FakeArray))
            queue.put(_fill_nothing, out, *arrays)


def _fill_nothing(*_arrays: object) -> None:
    """Fill nothing: the work of a draw that was recorded."""


def _version(index: int, out: Any, device_state: Any, fill: FillLaunch) -> Version:
    """Return the fill kernel that `RandomFiller.draw` launches, with the types of its arguments."""
    target = np.empty(1, out.dtype if fill.target is None else fill.target.dtype)
    zero = np.uint64(0)
    state = (zero, zero) if device_state is None else np.empty(2, np.uint64)
    args = (target, state, zero, *map(_example, fill.arguments))
    grid, block = (-(-fill.threads // fill.block), 1, 1), (fill.block, 1, 1)
    launch = (fill.kernel, fill.kernel, index, grid, block, 0)
    return Version(*launch, args, key_of(args), is_draw=True)


def _example(argument: Any) -> Any:
    """Return a host value of the type of an argument of a fill kernel."""
    if isinstance(argument, UnknownValues):
        return np.empty((1,) * argument.ndim, argument.dtype)
    if isinstance(argument, tuple):
        return tuple(map(_example, argument))
    return example_of(argument)


def _without_values(parameter: Any) -> Any:
    if not isinstance(parameter, FakeArray):
        return parameter
    return UnknownValues(parameter.layout.shape, parameter.layout.dtype)


class UnknownValues(NDArrayOperatorsMixin):
    """An array of parameters whose values satisfy every condition.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : numpy.dtype
        The type of its elements.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        # Strides 0: it has one element in memory.
        self._like = np.broadcast_to(np.ones((), dtype), shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        shape: tuple[int, ...] = self._like.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._like.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._like.ndim

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._like.itemsize

    def __len__(self) -> int:
        return len(self._like)

    def __getitem__(self, key: Any) -> UnknownValues:
        return UnknownValues(self._like[key].shape, self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> UnknownValues:
        """Return the same of another type."""
        return UnknownValues(self.shape, np.dtype(dtype))

    def view(self, dtype: Any) -> UnknownValues:
        """Return the same of another type of the same size."""
        return self.astype(dtype)

    def sum(self, axis: int) -> UnknownValues:
        """Return the sums along an axis."""
        shape = np.delete(self.shape, axis)
        return UnknownValues(tuple(map(int, shape)), np.sum(self._like[:0]).dtype)

    def all(self) -> bool:
        """Return True: a condition holds for all elements."""
        return True

    def any(self) -> bool:
        """Return False: no element violates a condition."""
        return False

    def min(self) -> str:
        """Return a sign for an unknown value, for messages."""
        return "?"

    max = min

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        with np.errstate(all="ignore"):
            sample = ufunc(*map(_first, inputs))
        return UnknownValues(_common_shape(inputs), sample.dtype)

    def __array_function__(
        self, function: Any, _types: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if function is np.all:
            return True
        if function is np.ndim:
            return self.ndim
        if function is np.shape:
            return self.shape
        if function is np.full_like:  # a number, which has a value
            return np.full(1, args[1], options["dtype"])
        if function is np.reshape:
            return UnknownValues(self._like.reshape(args[1]).shape, self.dtype)
        if function is np.where:
            return UnknownValues(_common_shape(args), np.result_type(*map(_first, args[1:])))
        return NotImplemented


def _first(value: Any) -> Any:
    """Return one element in place of an array, for the type of a result."""
    if isinstance(value, UnknownValues):
        return np.ones(1, value.dtype)
    return value[:1] if isinstance(value, np.ndarray) and value.ndim else value


def _common_shape(values: Iterable[Any]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(np.shape(value) for value in values))
