"""`Generator`: NumPy's method names over a Philox stream, on any device."""

from __future__ import annotations

import math
import operator
import secrets
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from nbrt.random.state import PhiloxState, checked_seed, words_consumed
from nbrt.runtime.array import checked_shape, copy, device_of, empty, holder_of
from nbrt.runtime.commands import Command
from nbrt.runtime.device import current_device, resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DeviceLike, DTypeLike, Shape

__all__ = ["DEFAULT_SEED", "Generator", "default_generator", "manual_seed"]

DEFAULT_SEED = 67280421310721
"""Seed of default generators that nobody seeded; the constant that torch uses for the same."""

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Generator:
    """Random arrays on one device, with the method names of `numpy.random.Generator`.

    Element i of a draw is a function of (seed, offset, i) alone, so every device gives the same
    bits; a draw of n elements moves the offset by the words it used, in whole blocks of 4. Any
    number of threads may draw from one generator: each draw gets a range of its own.

    Parameters
    ----------
    seed : int, optional
        In [0, 2**64); taken from the operating system if None.
    device : Device, str, int or None
        Where the arrays are made; the device that is current now by default.

    Examples
    --------
    >>> import nbrt
    >>> a = nbrt.Generator(7, device="cpu:0").random(4, dtype="float32")
    >>> b = nbrt.Generator(7, device="cpu:0").random(8, dtype="float32")
    >>> bool((a == b[:4]).all())
    True
    """

    def __init__(self, seed: int | None = None, device: DeviceLike = None) -> None:
        self._state = PhiloxState(secrets.randbits(64) if seed is None else checked_seed(seed))
        self._device = resolve_device(device)
        self._lock = threading.Lock()

    @property
    def device(self) -> Device:
        """The device on which arrays are made."""
        return self._device

    @property
    def state(self) -> PhiloxState:
        """Seed and offset of the next draw; may be set to continue from another state."""
        return self._state

    @state.setter
    def state(self, state: PhiloxState) -> None:
        if not isinstance(state, PhiloxState):
            raise ArgumentTypeError(f"expected a PhiloxState, got {state!r}")
        checked = state.checked()
        with self._lock:
            self._state = checked

    def manual_seed(self, seed: int) -> Generator:
        """Start again from `seed`, at offset 0; returns the generator, as torch's does."""
        self.state = PhiloxState(checked_seed(seed))
        return self

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._state.seed

    def advance(self, words: int) -> Generator:
        """Skip `words` 32-bit words, rounded up to whole blocks of 4; returns the generator.

        The offset wraps around at 2**64.

        A float32 element takes one word and a float64 element two, so piece k of a draw starts at
        ``advance(start)`` or ``advance(2 * start)``.
        """
        count = operator.index(words)
        if count < 0:
            raise ArgumentError(f"expected words to skip, got {count}; set state to go back")
        with self._lock:
            self._state = self._state.advance(count)
        return self

    def random(
        self, size: Shape | None = None, dtype: DTypeLike = np.float64, out: Array | None = None
    ) -> Any:
        """Return uniform floats in [0, 1): multiples of 2**-24 (float32) or 2**-53 (float64).

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the result; a scalar if None.
        dtype : dtype
            float32 or float64.
        out : array, optional
            An array of that dtype on the generator's device to fill and return.
        """
        return self._draw("uniform", (0.0, 1.0), size, _float_dtype(dtype), out)

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return uniform floats in [low, high); never `high` itself, unless equal to `low`.

        Parameters
        ----------
        low, high : float
            Bounds, finite, ``low <= high``.
        size, dtype, out
            As in `random`.
        """
        bounds = (_real("low", low), _real("high", high))
        return self._draw("uniform", bounds, size, _float_dtype(dtype), out)

    def standard_normal(
        self, size: Shape | None = None, dtype: DTypeLike = np.float64, out: Array | None = None
    ) -> Any:
        """Return normal floats of mean 0 and standard deviation 1, by the Box-Muller transform.

        Parameters
        ----------
        size, dtype, out
            As in `random`.
        """
        return self._draw("normal", (0.0, 1.0), size, _float_dtype(dtype), out)

    def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return normal floats of mean `loc` and standard deviation `scale`.

        Parameters
        ----------
        loc, scale : float
            Finite; ``scale >= 0``.
        size, dtype, out
            As in `random`.
        """
        moments = (_real("loc", loc), _real("scale", scale))
        return self._draw("normal", moments, size, _float_dtype(dtype), out)

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,  # NumPy's signature
        out: Array | None = None,
    ) -> Any:
        """Return integers in [low, high), each equally likely (Lemire's method with rejection).

        Parameters
        ----------
        low, high : int
            Bounds; with `high` None, [0, low).
        size : int or tuple of int, optional
            Shape of the result; a scalar if None.
        dtype : dtype
            An integer type that holds every value, or bool.
        endpoint : bool
            Whether `high` itself may be returned.
        out : array, optional
            An array of that dtype on the generator's device to fill and return.
        """
        kind = np.dtype(dtype)
        first, last = (
            (0, _integer("low", low))
            if high is None
            else (_integer("low", low), _integer("high", high))
        )
        last += bool(endpoint)
        _check_integer_range(first, last, kind)
        return self._draw("integers", (first, last), size, kind, out)

    def __getstate__(self) -> tuple[PhiloxState, Device]:
        return self._state, self._device

    def __setstate__(self, state: tuple[PhiloxState, Device]) -> None:
        self._state, self._device = state
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        seed, offset = self._state
        return f"Generator(seed={seed}, offset={offset}, device='{self._device}')"

    def _draw(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None,
    ) -> Any:
        stream = current_stream(self._device)
        if out is None:
            result = empty(() if size is None else size, dtype, stream=stream)
        else:
            result = self._checked_out(out, size, dtype)
        direct = result if result.flags.c_contiguous else empty(result.shape, dtype, stream=stream)
        if direct.size:
            self._fill(stream, direct, distribution, parameters)
        if direct is not result:
            copy(result, direct, stream=stream)
        if size is None and out is None and stream.interface.capabilities.host_addressable:
            stream.synchronize()
            return result[()]
        return result

    def _fill(
        self, stream: Stream, out: Array, distribution: str, parameters: tuple[Any, ...]
    ) -> None:
        words = words_consumed(math.prod(out.shape), _words_per_element(out.dtype, parameters))
        with self._lock:
            taken = self._state
            self._state = reserved = taken.advance(words)
        flat = out.reshape(-1)
        raw = flat.view(np.uint8) if out.dtype == np.bool_ else flat
        command = Command(
            "draw",
            stream.interface.draw,
            (raw, distribution, taken.seed, taken.offset, parameters),
            distribution,
        )
        try:
            stream.submit(command)
        except BaseException:
            # A draw that never happened takes nothing, unless another one was reserved behind it.
            with self._lock:
                if self._state == reserved:
                    self._state = taken
            raise

    def _checked_out(self, out: Array, size: Shape | None, dtype: np.dtype[Any]) -> Array:
        if not hasattr(out, "dtype") or not hasattr(out, "shape"):
            raise ArgumentTypeError(f"expected out to be an array, got {type(out).__name__}")
        if out.dtype != dtype:
            is_float = dtype.kind == "f"
            fits = (
                out.dtype in _FLOATS if is_float else out.dtype.kind in "iub" and out.dtype.isnative
            )
            step = f"pass dtype={str(out.dtype)!r} too" if fits else f"make it with dtype={dtype}"
            raise ArgumentTypeError(f"expected out of dtype {dtype}, got {out.dtype}; {step}")
        shape = out.shape if size is None else checked_shape(size)
        if shape != out.shape:
            raise ArgumentError(f"expected out of shape {shape}, got {out.shape}; leave size out")
        holder = holder_of(out)
        capabilities = current_stream(self._device).interface.capabilities
        if holder is None and not capabilities.host_addressable:
            holder = device_of(out)
        if holder is not None and holder != self._device:
            raise DeviceMismatchError(
                f"expected out on {self._device}, got an array of {holder}; make it with "
                f"nbrt.empty(..., device='{self._device}')"
            )
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ArgumentError("expected a writable out, got a read-only array")
        return out


def _words_per_element(dtype: np.dtype[Any], parameters: tuple[Any, ...]) -> int:
    if dtype.kind == "f":
        return dtype.itemsize // 4
    return 1 if parameters[1] - parameters[0] <= 2**32 else 2


def _float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    if kind not in _FLOATS:
        raise ArgumentTypeError(f"expected dtype float32 or float64, got {kind}")
    return kind


def _real(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"expected {name} to be one real number, got {value!r}; for a parameter per element "
            f"scale a standard draw"
        ) from None
    if not math.isfinite(number):
        raise ArgumentError(f"expected {name} to be finite, got {number}")
    return number


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"expected {name} to be one integer, got {value!r}") from None


def _check_integer_range(low: int, high: int, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iub" or not dtype.isnative:
        raise ArgumentTypeError(
            f"expected an integer dtype or bool, in this machine's byte order, got {dtype}"
        )
    if low >= high:
        raise ArgumentError(f"expected low < high, got [{low}, {high})")
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if low < least or high - 1 > most:
        raise ArgumentError(
            f"expected a range within {dtype}, [{least}, {most + 1}), got [{low}, {high}); "
            f"pass a wider dtype"
        )


_default: dict[Device, Generator] = {}
_default_seed = DEFAULT_SEED
_default_lock = threading.Lock()


def default_generator(device: DeviceLike = None) -> Generator:
    """Return the generator that a device has by default; the same object at every call."""
    chosen = current_device() if device is None else resolve_device(device)
    with _default_lock:
        generator = _default.get(chosen)
        if generator is None:
            generator = _default[chosen] = Generator(_default_seed, chosen)
        return generator


def manual_seed(seed: int) -> None:
    """Seed the default generators of all devices, also of those not used yet.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.manual_seed(3)
    >>> nbrt.default_generator("cpu:0").initial_seed()
    3
    """
    global _default_seed
    checked = checked_seed(seed)
    with _default_lock:
        _default_seed = checked
        for generator in _default.values():
            generator.manual_seed(checked)
