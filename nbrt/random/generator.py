"""`Generator`: NumPy's methods over a Philox stream, on any device."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbrt._internal.checks import checked_int, checked_shape
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random import sampling
from nbrt.random.arguments import (
    checked_array,
    checked_flag,
    checked_out,
    float_dtype,
    integer,
    is_array,
    most_integer,
    number_dtype,
    probability,
)
from nbrt.random.array_filler import ArrayFiller
from nbrt.random.distributions import Distributions
from nbrt.random.distributions.discrete import check_integer_range
from nbrt.random.layouts import follows_torch, resolve_layout
from nbrt.random.layouts.element import ElementLayout
from nbrt.random.memory_order import as_kernel_view
from nbrt.random.multivariate import multivariate_normal
from nbrt.random.state import PhiloxState, checked_seed, whole_blocks
from nbrt.random.stream_position import StreamPosition, made_by_user, refuse_change
from nbrt.random.subsets import checked_subset
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.device import resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.index_sets import Region
    from nbrt.random.layouts import Gpu, Layout
    from nbrt.random.subsets import Index
    from nbrt.typing import Array, ArrayLike, DeviceLike, Shape

__all__ = ["Generator"]

_MODULUS = 2**64
_MAX_ELEMENTS = 2**62
_MAX_CHILDREN = 2**32


class Generator(Distributions):
    """Random arrays on one device, with the methods of `numpy.random.Generator`.

    Element i of a draw depends on (seed, offset, i) only, so all devices give the same bits. A draw
    moves the offset by the words that it uses, in whole blocks of 4. Threads may share a generator:
    each draw reserves a range of words. A draw that fails takes no words.

    Parameters
    ----------
    seed : int or numpy.random.SeedSequence, optional
        In [-2**63, 2**64); taken from the operating system if None. A negative one stands for
        ``2**64 - 1 + seed``, as in torch.
    device : Device, str, int or None
        The device of the arrays; by default the current one.
    layout : str or Layout
        The rule that gives each element its words of the stream: "element", a function of the index
        only; "torch", as torch's CUDA kernels do on a certain GPU; "torch_stateless", as
        torch.func._random does.
    gpu : str or (int, int), optional
        The GPU that "torch" follows, by name or as (multiprocessors, threads per multiprocessor);
        that of `device` by default.

    Examples
    --------
    >>> import nbrt
    >>> a = nbrt.Generator(7, device="cpu:0").random(4, dtype="float32")
    >>> b = nbrt.Generator(7, device="cpu:0").random(8, dtype="float32")
    >>> bool((a == b[:4]).all())
    True
    """

    def __init__(
        self,
        seed: int | np.random.SeedSequence | None = None,
        device: DeviceLike = None,
        layout: str | Layout = "element",
        *,
        gpu: Gpu | None = None,
    ) -> None:
        chosen = resolve_device(device)
        rule = resolve_layout(layout, gpu, chosen)
        sequence = seed if isinstance(seed, np.random.SeedSequence) else None
        if sequence is not None:
            number = int(sequence.generate_state(1, np.uint64)[0])
        else:
            number = secrets.randbits(64) if seed is None else checked_seed(seed)
        position = made_by_user(StreamPosition(PhiloxState(number), sequence))
        self._adopt(ArrayFiller(chosen, rule, position))

    def _adopt(self, filler: ArrayFiller) -> None:
        self._filler = filler
        self._position = filler.position
        # Shards of distributed tensors over the same state, each with its key's indices.
        self._shards: dict[Hashable, tuple[Any, Self]] = {}
        # The last mesh generator over this one. A weak dictionary outside would keep both alive:
        # its values refer to its keys.
        self._mesh_generator: Any = None

    def _with(self, filler: ArrayFiller) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._adopt(filler)
        return other

    def _at(self, position: StreamPosition) -> Self:
        return self._with(self._filler.at(position))

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._at(self._position.copy()).__dict__)

    def __repr__(self) -> str:
        seed, offset = self._position.state
        layout = "" if self.layout == ElementLayout() else f", layout={self.layout!r}"
        return f"Generator(seed={seed}, offset={offset}, device='{self.device}'{layout})"

    @property
    def device(self) -> Device:
        """The device on which arrays are made."""
        return self._filler.device

    @property
    def layout(self) -> Layout:
        """The rule that gives each element of a draw its words."""
        return self._filler.layout

    def clone(self) -> Self:
        """Return an independent generator with the same state, also of spawning."""
        return self._at(self._position.copy())

    def _split_off(self, skipped: int, words: int) -> Self:
        """Return an independent generator `skipped` words ahead, and move the state by `words`.

        Both are multiples of 4.
        """
        stream = current_stream(self.device)
        if stream.capture is not None:
            return self._at(stream.capture.split_off(stream, self._position, skipped, words))
        (seed, offset), _ = self._position.reserve(words)
        position = self._position.copy()
        position.state = PhiloxState(seed, (offset + skipped) % _MODULUS)
        return self._at(position)

    def spawn(self, n_children: int) -> list[Self]:
        """Return generators of independent streams, as `numpy.random.Generator.spawn` does.

        Child k of a generator is seeded with ``SeedSequence(seed).spawn(k + 1)[k]``; a later call
        continues the count. No state moves.

        Parameters
        ----------
        n_children : int
            Number of generators.
        """
        count = checked_int("n_children", n_children)
        if not 0 <= count < _MAX_CHILDREN:
            raise ArgumentError(f"expected n_children >= 0 and below 2**32, got {count}")
        refuse_change("a call of Generator.spawn, whose children differ at each run")
        sequence = self.seed_seq
        with self._position.lock:
            children = sequence.spawn(count)
        return [
            self._at(StreamPosition(PhiloxState(int(child.generate_state(1, np.uint64)[0])), child))
            for child in children
        ]

    def shard(self, shape: Shape, region: Region | Index | tuple[Index, ...]) -> Self:
        """Return a view of the generator whose draws are a part of a whole draw.

        Both share one state. A draw of the part moves it like the whole draw, so processes with
        equal generators that draw different parts keep equal states without communication.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the whole draw, which need not fit in memory.
        region : Region, or tuple of slice, int, Runs, and list of slice and Runs
            The part, as an index of the whole array with positive steps. A list takes its slices
            one after the other; elements may repeat. Lists of equal slices at equal distances, and
            `Runs`, are drawn as fast as one slice.

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
        if whole > _MAX_ELEMENTS:
            raise ArgumentError(f"expected a draw of at most 2**62 elements, got shape {sizes}")
        subset = checked_subset(sizes, region, self.device)
        return self._with(ArrayFiller(self.device, self.layout, self._position, subset, whole))

    def kernel_state(self, words: int) -> tuple[Array, np.uint64]:
        """Return a state for kernels that draw themselves, and move the offset by their words.

        A kernel gets both as arguments, and calls the functions of `nbrt_kernels.random` with the
        seed ``state[0]`` and the offset ``state[1] + before``. In a captured graph each replay has
        its next words.

        Parameters
        ----------
        words : int
            The 32-bit words that the kernel uses, rounded up to whole blocks of 4.

        Returns
        -------
        state : array of uint64, shape (2,)
            Seed and offset, on the device.
        before : numpy.uint64
            The words between that offset and the first word to use; 0 outside of a graph.

        Examples
        --------
        >>> import nbrt
        >>> from nbrt_kernels.random import uniform4
        >>> from numba import cuda
        >>> @nbrt.kernel
        ... def fill(x, state, before):
        ...     i = cuda.grid(1)
        ...     if 4 * i < x.size:
        ...         a, b, c, d = uniform4(state[0], state[1] + before, i)
        ...         x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3] = a, b, c, d
        >>> with nbrt.device("cpu:0"):
        ...     generator, x = nbrt.Generator(7), nbrt.zeros(8)
        ...     fill[1, 2](x, *generator.kernel_state(8))
        >>> bool((x == nbrt.Generator(7, device="cpu:0").random(8, dtype="float32")).all())
        True
        """
        count = checked_int("words", words)
        if count < 0:
            raise ArgumentError(f"expected words that a kernel uses, got {count}")
        stream = current_stream(self.device)
        if stream.capture is not None:
            state, before = stream.capture.reserve(stream, self._position, whole_blocks(count))
            return state, np.uint64(before)
        start, after = self._position.reserve(whole_blocks(count))
        try:
            return asarray(np.array(start, np.uint64), device=self.device), np.uint64(0)
        except BaseException:
            self._position.unreserve(start, after)
            raise

    # -- draws -------------------------------------------------------------------------------------

    def _draw(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None = None,
    ) -> Any:
        return self._filler.draw(distribution, parameters, size, dtype, out)

    @property
    def _is_shard(self) -> bool:
        return self._filler.subset is not None

    def _leading(self, size: Shape | None, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        subset = self._filler.subset
        return subset.shape[:-1] if size is None and subset else super()._leading(size, default)

    def choice(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """Return elements picked at random.

        Parameters
        ----------
        a : int or array_like
            The population: an array, along `axis`, or ``arange(a)``.
        size : int or tuple of int, optional
            Shape of the result; a single element if None.
        replace : bool
            Whether elements may repeat.
        p : array_like, shape (n,), optional
            Chances of the elements, of sum 1; equal ones by default.
        axis : int
            The axis of the array to pick along.
        shuffle : bool
            Ignored, for compatibility with NumPy: the order without replacement is always random.
        """
        return sampling.choice(self, a, size, replace, p, axis)

    def permutation(self, x: int | ArrayLike, axis: int = 0) -> Any:
        """Return a shuffled copy of an array along an axis, or of ``arange(x)``.

        It sorts 64-bit random keys, ties by index, so it is uniform up to a probability of
        ``n**2 / 2**65`` of a tie. It depends on n: a shorter one is no prefix of a longer one.

        Parameters
        ----------
        x : int or array_like
            The array.
        axis : int
            Slices along it keep their contents.
        """
        return sampling.permutation(self, x, axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Shuffle an array or a list in place, along an axis.

        Parameters
        ----------
        x : array or list
            The array or list.
        axis : int
            Slices along it keep their contents; 0 for a list.
        """
        sampling.shuffle(self, x, axis)

    def permuted(self, x: ArrayLike, *, axis: int | None = None, out: Array | None = None) -> Any:
        """Return a copy of an array with each slice along an axis shuffled for itself.

        Parameters
        ----------
        x : array_like
            The array.
        axis : int, optional
            Each line along it is shuffled independently; None: all elements together.
        out : array, optional
            Of the shape of `x` and a dtype that `x` casts to within its kind; may be `x` itself.
        """
        return sampling.permuted(self, x, axis, out)

    def multivariate_normal(
        self,
        mean: ArrayLike,
        cov: ArrayLike,
        size: Shape | None = None,
        check_valid: Literal["warn", "raise", "ignore"] = "warn",
        tol: float = 1e-8,
        *,
        method: Literal["svd", "eigh", "cholesky"] = "svd",
    ) -> Any:
        """Return normal vectors: ``mean + z @ factor`` with ``factor.T @ factor`` equal to `cov`.

        LAPACK computes the factor on the host, and the array library the product. Unlike in all
        other draws, the last bits may differ between machines; on one machine, shards have the bits
        of the whole.

        Parameters
        ----------
        mean : array_like, shape (k,)
            Means.
        cov : array_like, shape (k, k)
            Covariances, symmetric and positive semidefinite.
        size : int or tuple of int, optional
            Shape of the result without its last axis, which has length k.
        check_valid : {"warn", "raise", "ignore"}
            The reaction to a matrix that is no covariance.
        tol : float
            Tolerance of that check.
        method : {"svd", "eigh", "cholesky"}
            The decomposition of the covariance.
        """
        return multivariate_normal(self, mean, cov, size, check_valid, tol, method)

    def bytes(self, length: int) -> bytes:
        """Return random bytes, drawn as whole 32-bit words.

        Parameters
        ----------
        length : int
            Number of bytes.
        """
        count = integer("length", length)
        if is_array(count) or count < 0:
            raise ArgumentError(f"expected a length >= 0, got {length!r}")
        words = to_host(self.random_bits(-(-count // 4)), copy=None)
        return words.astype("<u4").tobytes()[:count]

    def dropout(self, x: ArrayLike, p: float = 0.5, training: bool = True) -> tuple[Any, Any]:
        """Zero elements with probability `p` and scale the rest by ``1 / (1 - p)``, in one pass.

        Parameters
        ----------
        x : array_like of floats
            The array.
        p : float
            In [0, 1]; 1 gives zeros.
        training : bool
            False: return a copy and a mask of True.

        Returns
        -------
        result, mask : arrays
            Of the shape of `x`; the mask is a bool array, True for elements that are kept. For p
            of 0 or 1 the state does not move.
        """
        stream = current_stream(self.device)
        values = asarray(x, device=self.device, stream=stream)
        if isinstance(values, np.ndarray):
            values = values.view(np.ndarray)
        element_dtype = float_dtype(values.dtype)
        chance = probability("p", p)
        if is_array(chance):
            raise ArgumentTypeError(f"expected p as one number, got {p!r}")
        is_training = checked_flag("training", training)
        axes = self._filler.axes(values)
        ordered = values if axes is None else values.transpose(axes)
        if not ordered.flags.c_contiguous:
            gathered = empty(ordered.shape, element_dtype, stream=stream)
            copy(gathered, ordered, stream=stream)
            ordered = gathered
        result = empty(ordered.shape, element_dtype, stream=stream)
        mask = empty(ordered.shape, np.bool_, stream=stream)
        if not is_training or chance == 0.0:
            copy(result, ordered, stream=stream)
            copy(mask, np.True_, stream=stream)
        elif chance == 1.0:
            copy(result, element_dtype.type(0), stream=stream)
            copy(mask, np.False_, stream=stream)
        else:
            parameters = (chance, as_kernel_view(ordered), as_kernel_view(mask))
            self._filler.fill(stream, result, "dropout", parameters, values.shape, has_arrays=True)
        if axes is None:
            return result, mask
        back = np.argsort(axes)
        return result.transpose(back), mask.transpose(back)

    def fill_integers(self, out: Array, low: int | None = None, high: int | None = None) -> Array:
        """Fill an array of numbers with integers of [low, high), and return it.

        Parameters
        ----------
        out : array
            Of integers, floats or bool.
        low, high : int, optional
            Bounds; without them, torch's range of the dtype: [0, 2**(bits - 1)) of
            signed integers, [0, 2**bits) of unsigned ones, both values of bool, and [0, 2**p] of
            floats with p bits of precision.
        """
        element_dtype = number_dtype(checked_array("out", out).dtype)
        is_torch = follows_torch(self.layout)
        if (low is None) != (high is None):
            raise ArgumentError(f"expected both bounds or none, got low={low}, high={high}")
        if low is None or high is None:
            if is_torch:
                return self._draw("random", (), None, element_dtype, out)
            low, high = 0, most_integer(element_dtype) + 1
        if element_dtype.kind in "iub":
            return self.integers(low, high, dtype=element_dtype, out=out)
        check_integer_range(integer("low", low), integer("high", high), np.dtype(np.int64))
        if is_torch:
            return self._draw("integers", (low, high), None, element_dtype, out)
        into = checked_out(current_stream(self.device), out, None, element_dtype)
        copy(into, self.integers(low, high, into.shape))
        return out
