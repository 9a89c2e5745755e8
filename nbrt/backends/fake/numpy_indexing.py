"""Indexing of arrays without values: views, shapes of copies, and checks of assignments."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import copied_like
from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.backends.fake.numpy_operands import common_memory, empty, fake_arrays, read_values

if TYPE_CHECKING:
    from nbrt.typing import HostArray

__all__ = ["check_assignment", "getitem", "indexed_shape", "is_element", "setitem"]

_INVALID = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean "
    "arrays are valid indices"
)


def getitem(array: Any, index: Any) -> Any:
    """Return the view or copy that an index selects."""
    view = _basic_view(array.layout, index)
    if view is not None:
        result = array.view_of(view)
        items = index if isinstance(index, tuple) else (index,)
        if view.ndim and any(isinstance(each, np.ndarray) for each in items):
            return copied_like(result, array.memory, view.dtype)  # an array copies, a number not
        return result
    common_memory([array, *fake_arrays(index)])
    selection = _select(array, index, counts_masks=True)
    first, last, fancy = selection.parts()
    # NumPy iterates over the index arrays outside, and over slices inside.
    result = array.memory.result((*fancy, *first, *last), array.dtype)
    if not first or not fancy:
        return result
    axes = range(len(result.shape))
    lead, middle = len(fancy), len(fancy) + len(first)
    order = (*axes[lead:middle], *axes[:lead], *axes[middle:])
    return result.as_owner(result.layout.transpose(order))


def is_element(index: Any) -> bool:
    """Return whether an index of integers selects an element, which NumPy returns as a scalar."""
    items = index if isinstance(index, tuple) else (index,)
    return not any(each is Ellipsis or isinstance(each, (str, list)) for each in items)


def setitem(array: Any, index: Any, value: Any) -> None:
    """Check an assignment to an index: devices, index, shapes and casting."""
    common_memory([array, value, *fake_arrays(index)])
    check_assignment(array, index, value)


def check_assignment(array: Any, index: Any, value: Any) -> None:
    """Check an assignment to an index without regard to devices.

    Raises
    ------
    IndexError
        If the index does not fit the array.
    ValueError
        If the array is read-only, or the value does not broadcast to what the index selects.
    """
    layout: HostArray = array.layout
    if not layout.flags.writeable:
        raise ValueError("assignment destination is read-only")
    if not isinstance(value, (ArrayMetadata, np.ndarray)):
        value = np.asarray(value, dtype=_field_dtype(layout, index))
    view = _basic_view(layout, index)
    if view is not None:
        target: tuple[int, ...] | None = view.shape
        kind = view.dtype
        text = "could not broadcast input array from shape {0} into shape {1}"
        if value.ndim and not view.ndim and array.memory.is_host and not _has_ellipsis(index):
            # An element of NumPy's takes a number, with a warning or an error for arrays.
            np.zeros(1, kind)[0] = np.zeros(value.shape if value.size == 1 else 2, value.dtype)
    else:
        kind = layout.dtype
        selection = _select(array, index, counts_masks=False)
        target = selection.shape()
        if selection.is_mask_of_all:
            _check_mask_assignment(selection, value)
            target = None
        text = (
            "shape mismatch: value array of shape {0}  could not be broadcast to indexing result "
            "of shape {1}"
        )
    np.empty(0, kind)[...] = empty(value) if value.ndim else np.empty(0, value.dtype)
    shape = value.shape
    while target is not None and len(shape) > len(target) and shape[0] == 1:
        shape = shape[1:]
    if view is None and target == (0,) and value.size == 0:
        return  # NumPy takes any array without elements here
    if target is not None and not _broadcasts(shape, target):
        raise ValueError(text.format(value.shape, target))


def _has_ellipsis(index: Any) -> bool:
    return any(each is Ellipsis for each in (index if isinstance(index, tuple) else (index,)))


def _field_dtype(layout: HostArray, index: Any) -> np.dtype[Any]:
    if layout.dtype.names is not None and isinstance(index, (str, list)):
        kind: np.dtype[Any] = np.empty(0, layout.dtype)[index].dtype
        return kind
    return layout.dtype


def _check_mask_assignment(selection: _Selection, value: Any) -> None:
    if value.ndim > 1:
        raise TypeError(
            f"NumPy boolean array indexing assignment requires a 0 or 1-dimensional input, input "
            f"has {value.ndim} dimensions"
        )
    (count,) = selection.shape() or (None,)
    if count is not None and value.ndim and value.shape[0] not in (1, count):
        raise ValueError(
            f"NumPy boolean array indexing assignment cannot assign {value.shape[0]} input values "
            f"to the {count} output values where the mask is true"
        )


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    lead = len(target) - len(shape)
    return lead >= 0 and all(
        size in (1, wanted) for size, wanted in zip(shape, target[lead:], strict=True)
    )


def indexed_shape(array: Any, index: Any) -> tuple[int, ...]:
    """Return the shape that an index selects."""
    view = _basic_view(array.layout, index)
    if view is not None:
        shape: tuple[int, ...] = view.shape
        return shape
    return _select(array, index, counts_masks=True).shape() or ()


# -- indices ---------------------------------------------------------------------------------------


def _basic_view(layout: HostArray, index: Any) -> HostArray | None:
    """Return the view that slices, integers and names of fields select; None for index arrays."""
    if isinstance(index, str) or (
        isinstance(index, list) and index and all(isinstance(each, str) for each in index)
    ):
        return layout[index]
    items = index if isinstance(index, tuple) else (index,)
    has_ellipsis = False
    basic: list[Any] = []
    for each in items:
        if each is Ellipsis:
            has_ellipsis = True
        elif each is not None and not isinstance(each, slice):
            if isinstance(each, (bool, np.bool_, list, tuple, ArrayMetadata)):
                return None
            if isinstance(each, np.ndarray) and (each.ndim or each.dtype.kind == "b"):
                return None
            try:
                each = operator.index(each)
            except TypeError:
                raise IndexError(_INVALID) from None
        basic.append(each)
    # With an ellipsis the result is a view also where all indices are integers, which would
    # otherwise read the element.
    view: HostArray = layout[tuple(basic) if has_ellipsis else (*basic, Ellipsis)]
    return view


@dataclass
class _Selection:
    """The parts of a selection by index arrays.

    Attributes
    ----------
    before, after : list of int
        Lengths of the sliced axes before and after the place of the index arrays.
    fancy : list of tuple
        Shapes of the index arrays; None for one whose length depends on values.
    is_apart : bool
        Slices lie between the index arrays, so that their axes come first.
    is_mask_of_all : bool
        The index is one boolean array of the array's number of axes.
    """

    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    fancy: list[tuple[int, ...] | None] = field(default_factory=list)
    is_apart: bool = False
    is_mask_of_all: bool = False
    _has_ended: bool = False

    def add_slice(self, length: int | None) -> None:
        """Add a sliced axis, or with None an ellipsis of no axis."""
        side = self.after if self.fancy else self.before
        if length is not None:
            side.append(length)
        self._has_ended = bool(self.fancy)

    def add_index(self, shape: tuple[int, ...] | None) -> None:
        """Add an index array of a shape."""
        self.is_apart |= self._has_ended
        self.fancy.append(shape)

    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the sliced axes before and after the axes of the index arrays, and those."""
        known = [each for each in self.fancy if each is not None]
        try:
            fancy = np.broadcast_shapes(*known)
        except ValueError:
            text = " ".join(str(each).replace(", ", ",") for each in known)
            raise IndexError(
                f"shape mismatch: indexing arrays could not be broadcast together with shapes "
                f"{text} "
            ) from None
        if self.is_apart:
            return (), (*self.before, *self.after), fancy
        return tuple(self.before), tuple(self.after), fancy

    def shape(self) -> tuple[int, ...] | None:
        """Return the shape of the selection; None if it depends on values."""
        if None in self.fancy:
            return None
        before, after, fancy = self.parts()
        return (*before, *fancy, *after)


def _select(array: Any, index: Any, *, counts_masks: bool) -> _Selection:
    items = [_index_array(each) for each in (index if isinstance(index, tuple) else (index,))]
    if sum(each is Ellipsis for each in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(_axes_used(each) for each in items)
    if used > array.ndim:
        raise IndexError(
            f"too many indices for array: array is {array.ndim}-dimensional, but {used} were "
            f"indexed"
        )
    if Ellipsis not in [each for each in items if not hasattr(each, "dtype")]:
        items.append(Ellipsis)
    selection = _Selection()
    axis = 0
    for each in items:
        if each is Ellipsis:
            rest = array.shape[axis : axis + array.ndim - used]
            axis += len(rest)
            for length in rest or (None,):
                selection.add_slice(length)
        elif each is None:
            selection.add_slice(1)
        elif isinstance(each, slice):
            selection.add_slice(len(range(*each.indices(array.shape[axis]))))
            axis += 1
        else:
            selection.add_index(_index_shape(array, axis, each, counts_masks))
            axis += _axes_used(each)
    selection.is_mask_of_all = (
        len(items) == 2 and _is_mask(items[0]) and items[0].ndim == array.ndim > 0
    )
    return selection


def _index_array(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, (slice, ArrayMetadata)):
        return item
    if isinstance(item, np.ndarray):
        values = item
    else:
        values = np.asarray(item)
        if values.size == 0 and not isinstance(item, np.ndarray):
            values = values.astype(np.intp)
    if values.dtype.kind not in "biu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return values


def _is_mask(item: Any) -> bool:
    return hasattr(item, "dtype") and item.dtype.kind == "b"


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return int(item.ndim) if _is_mask(item) else 1


def _index_shape(array: Any, axis: int, item: Any, counts_masks: bool) -> tuple[int, ...] | None:
    """Return the shape of one index array after a check of its values, if they are known."""
    shape: tuple[int, ...] = item.shape
    if _is_mask(item):
        for at, size in enumerate(shape):
            if size != array.shape[axis + at]:
                raise IndexError(
                    f"boolean index did not match indexed array along axis {axis + at}; size of "
                    f"axis is {array.shape[axis + at]} but size of corresponding boolean axis is "
                    f"{size}"
                )
        if isinstance(item, ArrayMetadata):
            if not counts_masks:
                return None
            reason = "the length of array[mask] depends on the values of the mask"
            item = read_values(item, reason)
        return (int(np.count_nonzero(item)),)
    if isinstance(item, ArrayMetadata):
        if item.dtype.kind not in "iu":
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        return shape
    length = array.shape[axis]
    if item.size:
        for value in (item.min(), item.max()):
            if not -length <= value < length:
                raise IndexError(
                    f"index {value} is out of bounds for axis {axis} with size {length}"
                )
    return shape
