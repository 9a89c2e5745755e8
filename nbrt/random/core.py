"""`GeneratorCore`: a place in a Philox stream, and the one way in which arrays are drawn."""

from __future__ import annotations

import math
import secrets
from copy import deepcopy as copy_of
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbrt._internal.checks import checked_int, checked_shape
from nbrt._internal.tracebacks import at_caller
from nbrt.backends.draw import Draw
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.arguments import checked_out, dtype_name, is_array
from nbrt.random.layouts import check_layout, resolve_layout
from nbrt.random.layouts.element import SAMPLED
from nbrt.random.memory_order import as_kernel_view, fill_pieces, memory_order, spread
from nbrt.random.regions import checked_part
from nbrt.random.state import (
    PhiloxState,
    checked_offset,
    checked_seed,
    whole_blocks,
)
from nbrt.random.stream_position import Cell
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.creation import empty
from nbrt.runtime.device import resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.backends.draw import Region
    from nbrt.random.layouts import Gpu, Layout
    from nbrt.random.regions import Index, Part
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DeviceLike, HostArray, Shape

__all__ = ["GeneratorCore", "common_shape"]


_MODULUS = 2**64
_MOST_KINDS = 64
_SHORT = 2
_MOST_ELEMENTS = 2**62
_MOST_CHILDREN = 2**32


_Kind: TypeAlias = "tuple[tuple[Any, ...], int, dict[Any, Any] | None]"
"""A draw but for its place in the stream: its fields, the words it takes, its memo."""


class GeneratorCore:
    """State and draws of a generator; see `nbrt.Generator`, which adds the distributions."""

    def __init__(
        self,
        seed: int | np.random.SeedSequence | None = None,
        device: DeviceLike = None,
        layout: str | Layout = "element",
        *,
        gpu: Gpu | None = None,
    ) -> None:
        self._device = resolve_device(device)
        self._layout = resolve_layout(layout, gpu, self._device)
        self._part: Part | None = None
        self._whole = 0
        self._kinds: dict[Hashable, _Kind] = {}
        # What draws parts of distributed tensors from the same state, beside the indices of each.
        self._parts: dict[Hashable, tuple[Any, Self]] = {}
        # The last generator over a mesh that draws from this one. What lives longer may not keep
        # it: weak dictionaries have generators as keys, and meshes in their values.
        self._drawing: Any = None
        sequence = seed if isinstance(seed, np.random.SeedSequence) else None
        if sequence is not None:
            number = int(sequence.generate_state(1, np.uint64)[0])
        else:
            number = secrets.randbits(64) if seed is None else checked_seed(seed)
        self._cell = Cell(PhiloxState(number), sequence)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device on which arrays are made."""
        return self._device

    @property
    def layout(self) -> Layout:
        """The rule that gives each element of a draw its words."""
        return self._layout

    @property
    def bit_generator(self) -> Self:
        """The generator itself, for code that asks NumPy's generators for theirs."""
        return self

    @property
    def seed_seq(self) -> np.random.SeedSequence:
        """The `numpy.random.SeedSequence` from which `spawn` takes its children."""
        cell = self._cell
        with cell.lock:
            if cell.sequence is None:
                cell.sequence = np.random.SeedSequence(cell.state.seed)
            return cell.sequence

    def __repr__(self) -> str:
        seed, offset = self._cell.state
        layout = "" if self._layout.name == "element" else f", layout={self._layout!r}"
        return f"Generator(seed={seed}, offset={offset}, device='{self._device}'{layout})"

    # -- state -------------------------------------------------------------------------------------

    @property
    def state(self) -> PhiloxState:
        """Seed and offset of the next draw; may be set to continue from another state."""
        return self._cell.state

    @state.setter
    def state(self, state: PhiloxState) -> None:
        if not isinstance(state, PhiloxState):
            raise ArgumentTypeError(f"expected a PhiloxState, got {state!r}")
        checked = state.checked()
        cell = self._cell
        with cell.lock:
            if checked.seed != cell.state.seed:
                cell.sequence = None
            cell.state = checked

    def manual_seed(self, seed: int) -> Self:
        """Start again from `seed`, at offset 0; returns the generator, as torch's does.

        Spawning starts again as well.
        """
        state = PhiloxState(checked_seed(seed))
        cell = self._cell
        with cell.lock:
            cell.sequence, cell.state = None, state
        return self

    def seed(self) -> int:
        """Start again from a seed of the operating system's, and return it."""
        seed = secrets.randbits(64)
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._cell.state.seed

    def get_state(self) -> HostArray:
        """Return the state as 16 bytes: what ``torch.cuda.get_rng_state`` returns for it.

        Returns
        -------
        state : numpy.ndarray of uint8, shape (16,)
            Seed, then offset, little-endian.
        """
        return np.frombuffer(self._cell.state.to_bytes(), np.uint8).copy()

    def set_state(self, state: Any) -> None:
        """Continue from a state of `get_state`, or of ``torch.cuda.get_rng_state``.

        Parameters
        ----------
        state : array_like of uint8, or bytes
            16 bytes; or 8, a seed, to start at offset 0.
        """
        data = np.asarray(state).tobytes() if hasattr(state, "__array__") else state
        self.state = PhiloxState.from_bytes(data)

    def get_offset(self) -> int:
        """Return the offset: 32-bit words consumed so far."""
        return self._cell.state.offset

    def set_offset(self, offset: int) -> None:
        """Continue from another offset, a multiple of 4 in [0, 2**64)."""
        number = checked_offset(offset)
        with self._cell.lock:
            self._cell.state = self._cell.state._replace(offset=number)

    def advance(self, words: int) -> Self:
        """Skip `words` 32-bit words, rounded up to whole blocks of 4; returns the generator.

        The offset wraps around at 2**64.

        A float32 element takes one word and a float64 element two, so piece k of a draw starts at
        ``advance(start)`` or ``advance(2 * start)``.
        """
        ahead = checked_int("words to skip", words)
        if ahead < 0:
            raise ArgumentError(f"expected words to skip, got {ahead}; set state to go back")
        self._cell.take(whole_blocks(ahead))
        return self

    def clone(self) -> Self:
        """Return a generator of its own that continues from the same state, also in spawning."""
        other = self._copy()
        other._cell = Cell(*self.snapshot())
        return other

    def _split_off(self, ahead: int, after: int) -> Self:
        """Return a generator of its own that goes on `ahead` words from here; move `after` words.

        Both in whole blocks.
        """
        taken, _ = self._cell.take(after)
        other = self._copy()
        state = PhiloxState(taken.seed, (taken.offset + ahead) % _MODULUS)
        other._cell = Cell(state, self.snapshot()[1])
        return other

    def snapshot(self) -> tuple[PhiloxState, np.random.SeedSequence | None]:
        """Return all that `restore` needs: the state, and how far spawning has come."""
        cell = self._cell
        with cell.lock:
            sequence = cell.sequence
            return cell.state, None if sequence is None else copy_of(sequence)

    def restore(self, snapshot: tuple[PhiloxState, np.random.SeedSequence | None]) -> None:
        """Continue as from when `snapshot` was called."""
        cell = self._cell
        with cell.lock:
            cell.state, cell.sequence = snapshot[0], copy_of(snapshot[1])

    def spawn(self, n_children: int) -> list[Self]:
        """Return generators of independent streams, as `numpy.random.Generator.spawn` does.

        Child k of a generator is seeded with ``SeedSequence(seed).spawn(k + 1)[k]``; a later call
        goes on counting. Nothing is drawn.

        Parameters
        ----------
        n_children : int
            How many.
        """
        count = checked_int("n_children", n_children)
        if not 0 <= count < _MOST_CHILDREN:
            raise ArgumentError(f"expected n_children >= 0 and below 2**32, got {count}")
        sequence = self.seed_seq
        with self._cell.lock:
            children = sequence.spawn(count)
        generators = []
        for child in children:
            other = self._copy()
            other._cell = Cell(PhiloxState(int(child.generate_state(1, np.uint64)[0])), child)
            generators.append(other)
        return generators

    def shard(self, shape: Shape, region: Region | Index | tuple[Index, ...]) -> Self:
        """Return a view of the generator whose draws are a part of the whole draw.

        Both share one state: a draw of the part moves it as the draw of the whole would, so many
        processes that each draw a part with equal generators stay in step without a word.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the whole draw; may be far larger than memory.
        region : Region, or tuple of slice, int, Runs, and list of slice and Runs
            Which part, as one would index the whole array, with positive steps. A list takes its
            slices one after the other, also the same elements twice. Lists of equal slices at equal
            distances, and `Runs`, are drawn as fast as one slice.

        Examples
        --------
        >>> import nbrt
        >>> whole = nbrt.Generator(1, device="cpu:0").random((6, 8))
        >>> part = nbrt.Generator(1, device="cpu:0").shard((6, 8), (slice(2, 5), slice(1, 7, 2)))
        >>> bool((part.random() == whole[2:5, 1:7:2]).all())
        True
        >>> part = nbrt.Generator(1, device="cpu:0").shard((6, 8), [slice(0, 1), slice(3, 6)])
        >>> bool((part.random() == whole[[0, 3, 4, 5]]).all())
        True
        """
        sizes = checked_shape(shape)
        whole = math.prod(sizes)
        if whole > _MOST_ELEMENTS:
            raise ArgumentError(f"expected a draw of at most 2**62 elements, got shape {sizes}")
        other = self._copy()
        other._part = checked_part(sizes, region, self._device)
        other._whole = whole
        return other

    def _copy(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._kinds, other._parts, other._drawing = {}, {}, None
        return other

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"_kinds": {}, "_parts": {}, "_drawing": None}
        return {**self.__dict__, "_cell": self.snapshot(), **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._cell = Cell(*state["_cell"])

    # -- draws -------------------------------------------------------------------------------------

    def _draw(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None = None,
    ) -> Any:
        """Return an array of a distribution: allocate, reserve, fill."""
        if dtype.itemsize == _SHORT and dtype.kind in "fV" and distribution in SAMPLED:
            return self._draw_short(distribution, parameters, size, dtype, out)
        stream = current_stream(self._device)
        has_arrays = False
        for parameter in parameters:
            if type(parameter) is not float and is_array(parameter):
                has_arrays = True
        if has_arrays:
            parameters = tuple(
                asarray(p, device=self._device, stream=stream) if is_array(p) else p
                for p in parameters
            )
        if out is not None:
            result = checked_out(stream, out, size, dtype)
        else:
            result = empty(
                self._shape(size, parameters if has_arrays else ()), dtype, stream=stream
            )
        # A subclass, such as a matrix, may not be flattened as arrays are.
        is_plain = type(result) is np.ndarray or not isinstance(result, np.ndarray)
        plain = result if is_plain else result.view(np.ndarray)
        try:
            self._fill_in_order(stream, plain, distribution, parameters, has_arrays)
        except KeyboardInterrupt as error:
            __tracebackhide__ = True
            raise at_caller(error) from None
        if size is None and out is None and not result.shape and self._part is None:
            return self._scalar(stream, result)
        return result

    def _draw_short(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None,
    ) -> Any:
        """Draw float32 and round: samplers compute so, and large kernels are compiled once."""
        stream = current_stream(self._device)
        result = None if out is None else checked_out(stream, out, size, dtype)
        shape = self._shape(size, parameters) if result is None else result.shape
        values = self._draw(distribution, parameters, shape, np.dtype(np.float32))
        if result is None:
            result = empty(shape, dtype, stream=stream)
        copy(result, values, stream=stream)
        is_scalar = size is None and out is None and not shape and self._part is None
        return self._scalar(stream, result) if is_scalar else result

    def _leading(self, size: Shape | None, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return the shape of a draw of vectors, without their own axis."""
        if size is not None:
            return checked_shape(size)
        return default if self._part is None else self._part.shape[:-1]

    def _shape(self, size: Shape | None, parameters: tuple[Any, ...]) -> tuple[int, ...]:
        if size is not None:
            return checked_shape(size)
        if self._part is not None:
            return self._part.shape
        return common_shape([np.shape(one) for one in parameters]) if parameters else ()

    def _scalar(self, stream: Stream, result: Any) -> Any:
        if not stream.interface.capabilities.host_addressable:
            return result
        stream.synchronize()
        return result[()]

    def _fill_in_order(
        self,
        stream: Stream,
        result: Array,
        distribution: str,
        parameters: tuple[Any, ...],
        has_arrays: bool,
    ) -> None:
        """Fill `result` in the layout's order of elements, through a copy if there are gaps."""
        shape = result.shape
        if not has_arrays and result.flags.c_contiguous:
            self._fill(stream, result, distribution, parameters, shape)
            return
        axes = self._axes(result)
        ordered = result if axes is None else result.transpose(axes)
        direct = ordered
        if not ordered.flags.c_contiguous:
            direct = empty(ordered.shape, result.dtype, stream=stream)
        if has_arrays:
            if not result.size:
                self._check_arrays(stream, distribution, parameters, result.dtype)
            parameters = tuple(
                spread(stream, p, shape, axes) if hasattr(p, "shape") else p for p in parameters
            )
            if stream.interface.capabilities.host_addressable:
                stream.synchronize()  # the host checks and converts them
        self._fill(stream, direct, distribution, parameters, shape, has_arrays)
        if direct is not ordered:
            copy(ordered, direct, stream=stream)

    def _check_arrays(
        self, stream: Stream, distribution: str, parameters: tuple[Any, ...], dtype: np.dtype[Any]
    ) -> None:
        """Refuse arrays of parameters that a draw refuses, where none of their values is used."""
        shape = common_shape([np.shape(one) for one in parameters])
        whole = tuple(
            spread(stream, p, shape, None) if hasattr(p, "shape") else p for p in parameters
        )
        if stream.interface.capabilities.host_addressable:
            stream.synchronize()
        request = Draw(distribution, dtype_name(dtype), 0, whole)
        stream.interface.draw(stream.queue, as_kernel_view(empty(0, dtype, stream=stream)), request)

    def _axes(self, array: Array) -> list[int] | None:
        """Return the axes of an array in the order in which they are counted; None: as they are."""
        # A part lies in memory in its own way, but the whole that it is of in C order.
        return memory_order(array) if self._layout.follows_memory and self._part is None else None

    def _fill(
        self,
        stream: Stream,
        out: Array,
        distribution: str,
        parameters: tuple[Any, ...],
        shape: tuple[int, ...],
        has_arrays: bool = False,
    ) -> None:
        """Reserve a range of the stream and fill contiguous `out` from it."""
        part = self._part
        if part is not None and shape != part.shape:
            raise ArgumentError(
                f"expected the shape of the shard, {part.shape}, got {shape}; leave size out"
            )
        key = (distribution, out.dtype, out.size, parameters)
        # What arrays hold may change, so a draw with such parameters is one of its kind.
        known = None if has_arrays else self._kinds.get(key)
        if known is None:
            if not out.size:  # nothing is drawn, by parameters that are checked all the same
                request = Draw(distribution, dtype_name(out.dtype), 0, parameters)
                stream.interface.draw(stream.queue, as_kernel_view(out), request)
            known = (*self._kind_of(*key), None if has_arrays else {})
            if not has_arrays:
                if len(self._kinds) >= _MOST_KINDS:
                    self._kinds.clear()
                self._kinds[key] = known
        kind, words, memo = known
        cell = self._cell
        taken, reserved = cell.take(words)
        if not out.size:
            return
        draw = Draw._make((*kind, taken.seed, taken.offset, None, shape, cell.number, memo))
        try:
            if part is not None and len(part.pieces) > 1:
                fill_pieces(stream, out, draw, part)
            else:
                view = as_kernel_view(out)
                stream.enqueue("draw", stream.interface.draw, (view, draw), distribution)
        except BaseException:
            # A draw that never happened takes nothing, unless another one was reserved behind it.
            cell.give_back(taken, reserved)
            raise

    def _kind_of(
        self, distribution: str, dtype: np.dtype[Any], count: int, parameters: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], int]:
        """Return a draw's fields but for its place in the stream, and the words that it takes."""
        name = dtype_name(dtype)
        part = self._part
        n = count if part is None else self._whole
        layout = self._layout
        if n == 0:
            return (), 0
        words = layout.increment(distribution, name, n, parameters)
        constants = layout.constants(distribution, name, n)
        check_layout(layout, words, constants)
        region = None if part is None else part.pieces[0].region
        rule = (layout.name, constants, layout.locate, region)
        return (distribution, name, n, parameters, *rule), words


def common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which parameters of some shapes broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(
            f"expected parameters that broadcast together, got shapes {list(shapes)}"
        ) from None
