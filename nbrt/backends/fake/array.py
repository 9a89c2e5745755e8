"""`FakeArray`: an array with shape, dtype, strides, device and storage, without values."""

from __future__ import annotations

from numpy.lib.mixins import NDArrayOperatorsMixin

from nbrt.backends.fake.numpy_metadata import ArrayMetadata, FakeMemory

__all__ = ["FakeArray", "FakeMemory"]


class FakeArray(ArrayMetadata, NDArrayOperatorsMixin):
    """An array of a fake device: it behaves as `numpy.ndarray` as far as metadata goes.

    Parameters
    ----------
    layout : numpy.ndarray
        An array over addresses without memory. Only operations that make views may be applied to
        it: the process ends if an element is touched.
    memory : FakeMemory
        The memory that the array lies in.
    handle : object
        Keeps the allocation alive.
    base : FakeArray, optional
        The array that this one is a view of.
    """

    __slots__ = ()

    __array_priority__ = 100.0
