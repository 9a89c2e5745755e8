"""`numpy.fft` of fake arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import copied_like, in_axis_order, iteration_axes
from nbrt.backends.fake.numpy_operands import lifted, sample
from nbrt.backends.fake.numpy_rules import RULES, new_result, rule

__all__: list[str] = []

_ONE_AXIS = (
    np.fft.fft,
    np.fft.ifft,
    np.fft.rfft,
    np.fft.irfft,
    np.fft.hfft,
    np.fft.ihfft,
)
_MANY_AXES = (
    np.fft.fftn,
    np.fft.ifftn,
    np.fft.rfftn,
    np.fft.irfftn,
    np.fft.fft2,
    np.fft.ifft2,
    np.fft.rfft2,
    np.fft.irfft2,
)
_TO_HALF = (np.fft.rfft, np.fft.ihfft, np.fft.rfftn, np.fft.rfft2)
"""Transforms of real numbers: the last axis becomes the half of it and one."""

_FROM_HALF = (np.fft.irfft, np.fft.hfft, np.fft.irfftn, np.fft.irfft2)
"""Transforms to real numbers: the last axis becomes twice itself less two."""


def _length(function: Any, given: int | None, size: int) -> int:
    if given is not None and given < 1:
        raise ValueError(f"Invalid number of FFT data points ({given}) specified.")
    if function in _FROM_HALF:
        length = 2 * (size - 1) if given is None else given
    else:
        length = size if given is None else given
    if length < 1:
        raise ValueError(f"Invalid number of FFT data points ({length}) specified.")
    return length // 2 + 1 if function in _TO_HALF else length


def _result(function: Any, source: Any, shape: tuple[int, ...], kind: Any, out: Any) -> Any:
    if out is not None:
        return new_result(function, source, shape, kind, out)
    return in_axis_order(source.memory, shape, kind, iteration_axes([source], len(shape)))


def _one_axis(function: Any) -> Any:
    def apply(
        a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, out: Any = None
    ) -> Any:
        source, _ = lifted(a, out)
        at = np.lib.array_utils.normalize_axis_index(axis, source.ndim)
        shape = list(source.shape)
        shape[at] = _length(function, n, shape[at])
        kind = function(np.ones(2, source.dtype), norm=norm).dtype
        return _result(function, source, tuple(shape), kind, out)

    return apply


def _many_axes(function: Any) -> Any:
    is_plane = function.__name__.endswith("2")

    def apply(
        a: Any,
        s: Any = None,
        axes: Any = (-2, -1) if is_plane else None,
        norm: str | None = None,
        out: Any = None,
    ) -> Any:
        source, _ = lifted(a, out)
        if axes is None:
            axes = range(-len(s), 0) if s is not None else range(source.ndim)
        places = [np.lib.array_utils.normalize_axis_index(at, source.ndim) for at in axes]
        lengths = [None] * len(places) if s is None else list(s)
        if len(lengths) != len(places):
            raise ValueError("Shape and axes have different lengths.")
        if not places and function in (*_TO_HALF, *_FROM_HALF):
            raise IndexError("list index out of range")
        if not places:
            return (
                source
                if out is None
                else new_result(function, source, source.shape, source.dtype, out)
            )
        shape = list(source.shape)
        middle = np.fft.ifft if "i" in function.__name__ else np.fft.fft
        for order, (at, given) in enumerate(zip(places, lengths, strict=True)):
            is_last = order == len(places) - 1
            wanted = None if given == -1 else given
            shape[at] = _length(function if is_last else middle, wanted, shape[at])
        kind = function(np.ones((2, 2), source.dtype), axes=(0, 1), norm=norm).dtype
        return _result(function, source, tuple(shape), kind, out)

    return apply


RULES.update({function: _one_axis(function) for function in _ONE_AXIS})
RULES.update({function: _many_axes(function) for function in _MANY_AXES})


@rule(np.fft.fftshift, np.fft.ifftshift)
def _shift(x: Any, axes: Any = None) -> Any:
    (source,) = lifted(x)
    np.fft.fftshift(sample(source), axes)
    return copied_like(source, source.memory, source.dtype)
