"""`ArrayFiller`: allocates arrays and fills them from a stream position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbrt._internal.checks import checked_shape
from nbrt._internal.tracebacks import at_caller
from nbrt.backends.draw import REPEAT, Draw
from nbrt.errors import ArgumentError
from nbrt.random.arguments import checked_out, common_shape, dtype_name, is_array
from nbrt.random.layouts import check_layout
from nbrt.random.layouts.element import SAMPLED
from nbrt.random.memory_order import as_kernel_view, broadcast_flat, fill_blocks, memory_order
from nbrt.runtime import commands
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.creation import empty
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt._internal.device import Device
    from nbrt.random.layouts import Layout
    from nbrt.random.stream_position import StreamPosition
    from nbrt.random.subsets import Subset
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, Shape

__all__ = ["ArrayFiller", "call_on_stream", "host_scalar"]

_MAX_PLANS = 64

_Plan: TypeAlias = "tuple[tuple[Any, ...], int, dict[Any, Any] | None]"
"""The fields of a `Draw` before its seed, the words that it takes, and its memo."""


class ArrayFiller:
    """Allocates arrays of a device and fills them from a stream position.

    Parameters
    ----------
    device : Device
        The device of the arrays.
    layout : Layout
        The rule that gives each element its words.
    position : StreamPosition
        The state of the generator.
    subset : Subset, optional
        The elements of each draw that an array holds; None: all.
    whole_size : int
        With `subset`, the number of elements of each whole draw.
    """

    __slots__ = ("_repeats", "device", "layout", "plan_cache", "position", "subset", "whole_size")

    def __init__(
        self,
        device: Device,
        layout: Layout,
        position: StreamPosition,
        subset: Subset | None = None,
        whole_size: int = 0,
    ) -> None:
        self.device = device
        self.layout = layout
        self.position = position
        self.subset = subset
        self.whole_size = whole_size
        self.plan_cache: dict[Hashable, _Plan] = {}
        self._repeats: dict[Hashable, Callable[[Array], bool]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.device, self.layout, self.position, self.subset, self.whole_size)
        return ArrayFiller, fields

    def at(self, position: StreamPosition) -> ArrayFiller:
        """Return a filler that differs in its position only."""
        return ArrayFiller(self.device, self.layout, position, self.subset, self.whole_size)

    def draw(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None,
    ) -> Any:
        """Return an array of a distribution; see `BaseGenerator._draw`."""
        key: Hashable = None
        # The usual case of small draws first: an array of the kind of an earlier one.
        if type(out) is np.ndarray and out.dtype is dtype:
            shape = out.shape
            if size is None or (type(size) is int and shape == (size,)):
                key = (distribution, dtype, shape, parameters)
                try:
                    repeat = self._repeats.get(key)
                except TypeError:  # arrays among the parameters have no hash
                    repeat = None
                if repeat is not None and repeat(out):
                    return out
        has_arrays = any(is_array(parameter) for parameter in parameters)
        if dtype.itemsize == 2 and dtype.kind in "fV" and distribution in SAMPLED:
            return self._draw_rounded(distribution, parameters, size, dtype, out)
        stream = current_stream(self.device)
        if has_arrays:
            parameters = tuple(
                asarray(p, device=self.device, stream=stream) if is_array(p) else p
                for p in parameters
            )
        if out is not None:
            result = checked_out(stream, out, size, dtype)
        else:
            shape = self._shape(size, parameters if has_arrays else ())
            result = empty(shape, dtype, stream=stream)
        # A subclass, such as a matrix, may not be flattened as arrays are.
        is_plain = type(result) is np.ndarray or not isinstance(result, np.ndarray)
        plain = result if is_plain else result.view(np.ndarray)
        try:
            if has_arrays or not plain.flags.c_contiguous:
                self._fill_reordered(stream, plain, distribution, parameters, has_arrays)
            else:
                self.fill(stream, plain, distribution, parameters, plain.shape)
                if key is not None and not has_arrays:
                    self._keep_repeat(key, stream, plain, distribution, parameters)
        except KeyboardInterrupt as error:
            __tracebackhide__ = True
            raise at_caller(error) from None
        if size is None and out is None and not result.shape and self.subset is None:
            return host_scalar(stream, result)
        return result

    def _keep_repeat(
        self,
        key: Hashable,
        stream: Stream,
        out: Array,
        distribution: str,
        parameters: tuple[Any, ...],
    ) -> None:
        """Keep the draw that was made into `out` as a function that makes it into another array.

        It returns False where the draw needs the way through `fill`.
        """
        plan = self.plan_cache.get((distribution, out.dtype, out.size, parameters))
        launch = None if plan is None or plan[2] is None else plan[2].get(REPEAT)
        if key in self._repeats or launch is None or out.dtype.kind in "bV":
            return
        assert plan is not None
        words, device, position, is_flat = plan[1], self.device, self.position, out.ndim == 1
        may_fill, index = stream.interface.may_fill, device.index

        def repeat(array: Array) -> bool:
            stream = current_stream(device)
            if not (
                array.flags.carray
                and stream.capture is None
                # `_is_unseen`, without its call.
                and not (commands.hooks and "draw" in commands.hooked_kinds)
                and stream._lazy.is_ready
                and stream.record_use is None
                and may_fill(array, index)
            ):
                return False
            before, after = position.reserve(words)
            try:
                launch(stream.queue, array if is_flat else array.reshape(-1), *before)
            except BaseException as error:
                position.unreserve(before, after)
                if isinstance(error, KeyboardInterrupt):
                    __tracebackhide__ = True
                    raise at_caller(error) from None
                raise
            return True

        if len(self._repeats) >= _MAX_PLANS:
            self._repeats.clear()
        self._repeats[key] = repeat

    def _draw_rounded(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None,
    ) -> Any:
        """Draw float32 and round to 16 bits: a sampler's kernel is compiled once for both."""
        stream = current_stream(self.device)
        result = None if out is None else checked_out(stream, out, size, dtype)
        shape = self._shape(size, parameters) if result is None else result.shape
        values = self.draw(distribution, parameters, shape, np.dtype(np.float32), None)
        if result is None:
            result = empty(shape, dtype, stream=stream)
        copy(result, values, stream=stream)
        is_scalar = size is None and out is None and not shape and self.subset is None
        return host_scalar(stream, result) if is_scalar else result

    def _shape(self, size: Shape | None, parameters: tuple[Any, ...]) -> tuple[int, ...]:
        if size is not None:
            return checked_shape(size)
        if self.subset is not None:
            return self.subset.shape
        return common_shape([np.shape(p) for p in parameters]) if parameters else ()

    def _fill_reordered(
        self,
        stream: Stream,
        result: Array,
        distribution: str,
        parameters: tuple[Any, ...],
        has_arrays: bool,
    ) -> None:
        """Fill `result` in the layout's order of elements, through a copy if it has gaps."""
        shape = result.shape
        axes = self.axes(result)
        ordered = result if axes is None else result.transpose(axes)
        direct = ordered
        if not ordered.flags.c_contiguous:
            direct = empty(ordered.shape, result.dtype, stream=stream)
        if has_arrays:
            if not result.size:
                self._check_arrays(stream, distribution, parameters, result.dtype)
            parameters = tuple(
                broadcast_flat(stream, p, shape, axes) if hasattr(p, "shape") else p
                for p in parameters
            )
            if stream.interface.capabilities.host_addressable:
                stream.synchronize()  # the host checks and converts them
        self.fill(stream, direct, distribution, parameters, shape, has_arrays)
        if direct is not ordered:
            copy(ordered, direct, stream=stream)

    def _check_arrays(
        self, stream: Stream, distribution: str, parameters: tuple[Any, ...], dtype: np.dtype[Any]
    ) -> None:
        """Check arrays of parameters, although a result without elements uses no value of them."""
        shape = common_shape([np.shape(p) for p in parameters])
        whole = tuple(
            broadcast_flat(stream, p, shape, None) if hasattr(p, "shape") else p for p in parameters
        )
        if stream.interface.capabilities.host_addressable:
            stream.synchronize()
        request = Draw(distribution, dtype_name(dtype), 0, whole)
        stream.interface.draw(stream.queue, as_kernel_view(empty(0, dtype, stream=stream)), request)

    def axes(self, array: Array) -> list[int] | None:
        """Return the axes of an array in the order in which the layout counts; None: C order."""
        # A subset has any memory order, but the whole draw is in C order.
        return memory_order(array) if self.layout.follows_memory and self.subset is None else None

    def fill(
        self,
        stream: Stream,
        out: Array,
        distribution: str,
        parameters: tuple[Any, ...],
        shape: tuple[int, ...],
        has_arrays: bool = False,
    ) -> None:
        """Reserve words of the stream and fill a contiguous array from them.

        Parameters
        ----------
        stream : Stream
            The stream of the launch.
        out : array
            The array, in the layout's order of elements.
        distribution : str
            Name of the distribution.
        parameters : tuple
            Numbers, or flat arrays with a value for each element of `out`.
        shape : tuple of int
            The shape that the caller sees.
        has_arrays : bool
            Whether there are arrays among the parameters.
        """
        subset = self.subset
        if subset is not None and shape != subset.shape:
            raise ArgumentError(
                f"expected the shape of the shard, {subset.shape}, got {shape}; leave size out"
            )
        key = (distribution, out.dtype, out.size, parameters)
        # The values of arrays may change, so their plans are not cached.
        plan = None if has_arrays else self.plan_cache.get(key)
        if plan is None:
            if not out.size:  # nothing is drawn, but the backend checks the parameters
                request = Draw(distribution, dtype_name(out.dtype), 0, parameters)
                stream.interface.draw(stream.queue, as_kernel_view(out), request)
            plan = (*self.plan(*key), None if has_arrays else {})
            if not has_arrays:
                if len(self.plan_cache) >= _MAX_PLANS:
                    self.plan_cache.clear()
                self.plan_cache[key] = plan
        fields, words, memo = plan
        position = self.position
        if stream.capture is not None:
            self._capture(stream, out, fields, words, shape)
            return
        if not stream._lazy.is_ready:
            # Before the position: a forked child must not wait for a replay of its parent.
            stream._lazy.ensure()
        before, after = position.reserve(words)
        if not out.size:
            return
        repeat = None if memo is None else memo.get(REPEAT)
        try:
            if repeat is not None and out.flags.carray and _is_unseen(stream):
                repeat(stream.queue, as_kernel_view(out), *before)
                return
            state = (*before, None, shape, position.number, memo)
            self._enqueue(stream, out, Draw._make((*fields, *state)))
        except BaseException:
            # A failed draw takes no words, unless another draw reserved words after it.
            position.unreserve(before, after)
            raise

    def _capture(
        self,
        stream: Stream,
        out: Array,
        fields: tuple[Any, ...],
        words: int,
        shape: tuple[int, ...],
    ) -> None:
        """Capture a draw, whose seed and offset a replay reads from memory of the device."""
        capture, position = stream.capture, self.position
        assert capture is not None
        state, offset = capture.reserve(stream, position, words)
        if not out.size:
            return
        try:
            # No memo: the plan of a draw depends on where its state is.
            draw = Draw._make((*fields, 0, offset, state, shape, position.number, None))
            self._enqueue(stream, out, draw)
        except BaseException:
            capture.unreserve(position, words)
            raise

    def _enqueue(self, stream: Stream, out: Array, draw: Draw) -> None:
        subset = self.subset
        if subset is not None and len(subset.blocks) > 1:
            fill_blocks(stream, out, draw, subset)
        else:
            view = as_kernel_view(out)
            stream.enqueue("draw", stream.interface.draw, (view, draw), draw.distribution)

    def plan(
        self, distribution: str, dtype: np.dtype[Any], count: int, parameters: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], int]:
        """Return the fields of a `Draw` before its seed, and the words that it takes."""
        name = dtype_name(dtype)
        subset = self.subset
        n = count if subset is None else self.whole_size
        layout = self.layout
        if n == 0:
            return (), 0
        words = layout.increment(distribution, name, n, parameters)
        constants = layout.constants(distribution, name, n)
        check_layout(layout, words, constants)
        region = None if subset is None else subset.blocks[0].region
        rule = (layout.name, constants, layout.index_to_counter, region)
        return (distribution, name, n, parameters, *rule), words


def _is_unseen(stream: Stream) -> bool:
    """Return whether the stream would only call the function of a draw that is not captured."""
    return (
        not (commands.hooks and "draw" in commands.hooked_kinds)
        and stream._lazy.is_ready
        and stream.record_use is None
    )


def host_scalar(stream: Stream, result: Any) -> Any:
    """Return a 0-d array as a scalar, if the host can read its memory."""
    if not stream.interface.capabilities.host_addressable:
        return result
    stream.synchronize()
    # An array without values, of a fake device, is read by the policy of its block.
    return result[()] if isinstance(result, np.ndarray) else np.asarray(result)[()]


def call_on_stream(device: Device, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the array library after the draws on the device's current stream."""
    stream = current_stream(device)
    if stream.interface.capabilities.host_addressable:
        stream.synchronize()
    with OptionalStreamGuard(stream):
        return function(*args)
