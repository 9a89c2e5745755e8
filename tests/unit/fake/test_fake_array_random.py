"""Random operations on a NumPy array and on a fake array of the same layout."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fake_arrays import SampleMemory
from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.numpy_layouts import strides_of_view

DTYPES = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
UFUNCS = [
    np.add, np.subtract, np.multiply, np.true_divide, np.floor_divide, np.power, np.maximum,
    np.less, np.equal, np.logical_and, np.bitwise_or, np.arctan2, np.hypot, np.left_shift,
]  # fmt: skip
UNARY = [np.negative, np.exp, np.abs, np.isnan, np.invert, np.sqrt, np.sign, np.conjugate, np.modf]
SCALARS = [0, 1, -1, 300, 2.5, 1j, True, np.float32(1), np.int64(2), np.uint8(3), np.array(2.0)]
AXES = st.one_of(st.none(), st.integers(-4, 4), st.lists(st.integers(-3, 3), max_size=3).map(tuple))


@dataclass
class Pair:
    """A real array and a fake one of the same layout."""

    real: Any
    fake: Any


@st.composite
def bases(draw: st.DrawFn) -> Pair:
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    real = np.ones(shape, dtype, order=draw(st.sampled_from("CF")))
    return Pair(real, SampleMemory("cpu").like(real))


slices = st.builds(
    slice,
    st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.integers(-3, 3).filter(bool)),
)
basic_items = st.one_of(slices, st.integers(-4, 3), st.none(), st.just(Ellipsis))
basic_indices = st.one_of(
    basic_items, st.lists(basic_items, max_size=5).map(tuple), st.just(Ellipsis)
)
fancy_items = st.one_of(
    slices,
    st.integers(-3, 3),
    st.none(),
    st.just(Ellipsis),
    st.booleans(),
    st.lists(st.integers(-3, 3), max_size=3),
    st.lists(st.lists(st.integers(-2, 1), min_size=2, max_size=2), min_size=1, max_size=2),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
fancy_indices = st.one_of(fancy_items, st.lists(fancy_items, max_size=4).map(tuple))
shapes = st.lists(st.integers(-1, 6), max_size=4).map(tuple)


def permutations(draw: st.DrawFn, ndim: int) -> Any:
    return draw(st.permutations(range(ndim)))


VIEWS: dict[str, Any] = {
    "index": lambda draw: (lambda index: lambda x: x[index])(draw(basic_indices)),
    "T": lambda draw: lambda x: x.T,
    "swapaxes": lambda draw: (lambda a, b: lambda x: x.swapaxes(a, b))(
        draw(st.integers(-3, 3)), draw(st.integers(-3, 3))
    ),
    "reshape": lambda draw: (lambda shape, order: lambda x: x.reshape(shape, order=order))(
        draw(shapes), draw(st.sampled_from("CFA"))
    ),
    "ravel": lambda draw: (lambda order: lambda x: x.ravel(order))(draw(st.sampled_from("CFAK"))),
    "view": lambda draw: (lambda dtype: lambda x: x.view(dtype))(draw(st.sampled_from(DTYPES))),
    "squeeze": lambda draw: lambda x: x.squeeze(),
    "expand": lambda draw: (lambda axis: lambda x: np.expand_dims(x, axis))(
        draw(st.integers(-4, 4))
    ),
    "flip": lambda draw: (lambda axis: lambda x: np.flip(x, axis))(draw(AXES)),
    "real": lambda draw: lambda x: x.real,
    "diagonal": lambda draw: (lambda k: lambda x: np.diagonal(x, k))(draw(st.integers(-3, 3))),
    "broadcast": lambda draw: (lambda shape: lambda x: np.broadcast_to(x, shape))(
        draw(st.lists(st.integers(0, 4), max_size=4).map(tuple))
    ),
    "moveaxis": lambda draw: (lambda a, b: lambda x: np.moveaxis(x, a, b))(
        draw(st.integers(-3, 3)), draw(st.integers(-3, 3))
    ),
    "rot90": lambda draw: (lambda k: lambda x: np.rot90(x, k))(draw(st.integers(-2, 5))),
}


def outcome(function: Any, *args: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*args)
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            return error


def agree(real: Any, fake: Any, *, strides: bool = True) -> bool:
    """Check that outcomes agree; return whether they are arrays."""
    if isinstance(real, Exception):
        kinds = (IndexError, OverflowError, ValueError, TypeError)
        kind = next(each for each in kinds if isinstance(real, each))
        assert isinstance(fake, kind), (real, fake)
        return False
    if isinstance(real, (tuple, list)):
        pairs = zip(real, fake, strict=True)
        return all([agree(one, other, strides=strides) for one, other in pairs])  # noqa: C419
    assert isinstance(fake, FakeArray), (real, fake)
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
    if strides and real.size:
        steps = [
            (one, other)
            for size, one, other in zip(real.shape, real.strides, fake.strides, strict=True)
            if size > 1
        ]
        assert [one for one, _ in steps] == [other for _, other in steps], real.strides
    return True


@given(bases(), st.data())
@settings(max_examples=200, deadline=None)
def test_chains_of_views_have_numpys_layouts(base: Pair, data: st.DataObject) -> None:
    x = base
    for _ in range(data.draw(st.integers(1, 5))):
        name = data.draw(st.sampled_from(sorted(VIEWS)))
        function = VIEWS[name](data.draw)
        result = Pair(outcome(function, x.real), outcome(function, x.fake))
        if isinstance(result.real, np.generic):  # an element: NumPy copies, a fake array shows it
            assert result.fake.shape == ()
            assert result.fake.dtype == result.real.dtype
            return
        if not agree(result.real, result.fake):
            return
        shares = np.may_share_memory(result.real, x.real) and result.real.size > 0
        if shares:
            root = base.fake
            assert result.fake is x.fake or result.fake.base is not None
            offset = (
                result.real.__array_interface__["data"][0] - (x.real.__array_interface__["data"][0])
            )
            assert result.fake.address - x.fake.address == offset
            if x.fake is root or x.fake.base is root:
                assert result.fake is root or result.fake.base is root
            assert result.fake.flags.writeable == result.real.flags.writeable
        elif result.real.size:
            assert result.fake.base is None
            base = result
        x = result


@given(bases(), st.data())
@settings(max_examples=200, deadline=None)
def test_indices_select_numpys_shapes(base: Pair, data: st.DataObject) -> None:
    index = data.draw(fancy_indices)

    def select(x: Any) -> Any:
        return x[index]

    agree(outcome(select, base.real), outcome(select, base.fake), strides=False)
    value = data.draw(
        st.one_of(st.just(1), st.lists(st.integers(1, 4), max_size=3).map(lambda s: np.ones(s)))
    )

    def assign(x: Any) -> Any:
        x[index] = value
        return x

    real, fake = outcome(assign, base.real), outcome(assign, base.fake)
    if isinstance(real, Exception):  # of two errors, either may come first
        assert isinstance(fake, (IndexError, ValueError))
    else:
        agree(real, fake)


@given(bases(), bases(), st.data())
@settings(max_examples=200, deadline=None)
def test_ufuncs_have_numpys_results(a: Pair, b: Pair, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["unary", "scalar", "binary", "own", "out", "where"]))
    ufunc = data.draw(st.sampled_from(UNARY if kind == "unary" else UFUNCS))
    scalar = data.draw(st.sampled_from(SCALARS))
    order = data.draw(st.sampled_from("KCFA"))
    for _ in range(data.draw(st.integers(0, 2))):
        axes = permutations(data.draw, a.real.ndim)
        a = Pair(a.real.transpose(axes), a.fake.transpose(axes))
    calls: dict[str, Any] = {
        "unary": lambda x, y: ufunc(x, order=order),
        "scalar": lambda x, y: ufunc(x, scalar, order=order),
        "binary": lambda x, y: ufunc(x, y, order=order),
        "own": lambda x, y: ufunc(x, x.T, order=order),
        "out": lambda x, y: ufunc(x, scalar, out=y),
        "where": lambda x, y: ufunc(x, x, where=(y > 0)),
    }
    call = calls[kind]
    agree(outcome(call, a.real, b.real), outcome(call, a.fake, b.fake))


@given(bases(), st.data())
@settings(max_examples=200, deadline=None)
def test_reductions_have_numpys_results(a: Pair, data: st.DataObject) -> None:
    axis = data.draw(AXES)
    keepdims = data.draw(st.booleans())
    names = ["sum", "prod", "max", "min", "any", "all", "mean", "cumsum", "argmax", "std", "ptp"]
    name = data.draw(st.sampled_from([*names, "median", "sort", "argsort", "copy", "astype"]))
    dtype = data.draw(st.sampled_from(DTYPES))
    for _ in range(data.draw(st.integers(0, 1))):
        axes = permutations(data.draw, a.real.ndim)
        a = Pair(a.real.transpose(axes), a.fake.transpose(axes))

    def call(x: Any) -> Any:
        if name in ("cumsum", "sort", "argsort"):
            return getattr(np, name)(x, axis=axis)
        if name == "copy":
            return x.copy("K")
        if name == "astype":
            return x.astype(dtype)
        return getattr(np, name)(x, axis=axis, keepdims=keepdims)

    agree(outcome(call, a.real), outcome(call, a.fake), strides=name not in ("median", "argmax"))


@given(st.lists(bases(), min_size=1, max_size=3), st.data())
@settings(max_examples=100, deadline=None)
def test_joins_have_numpys_results(pairs: list[Pair], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["concatenate", "stack", "hstack", "vstack", "dstack"]))
    axis = data.draw(st.integers(-3, 3))
    if data.draw(st.booleans()):
        pairs = [pairs[0]] * len(pairs)

    def call(arrays: list[Any]) -> Any:
        function = getattr(np, name)
        return function(arrays, axis) if name in ("concatenate", "stack") else function(arrays)

    real = outcome(call, [each.real for each in pairs])
    agree(real, outcome(call, [each.fake for each in pairs]))


@given(bases(), bases())
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("name", ["matmul", "dot", "inner", "vecdot", "kron", "tensordot", "outer"])
def test_products_have_numpys_results(name: str, a: Pair, b: Pair) -> None:
    function = getattr(np, name)
    agree(outcome(function, a.real, b.real), outcome(function, a.fake, b.fake), strides=False)


@given(
    st.lists(st.sampled_from([1, 2, 3, 4]), max_size=4),
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), max_size=4),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_views_in_another_shape_without_numpys_help(
    old: list[int], new: list[int], data: st.DataObject
) -> None:
    steps = [data.draw(st.sampled_from([1, 2, -1])) for _ in old]
    base = np.ones([2 * each for each in old])
    x = base[tuple(slice(None, None, step) for step in steps)]
    x = x[tuple(slice(0, length) for length in old)].transpose(
        data.draw(st.permutations(range(len(old))))
    )
    known = math.prod(new)
    if not known or x.size % known:
        return
    shape = (*new, x.size // known)
    try:
        expected = x.reshape(shape, copy=False).strides
    except ValueError:
        assert strides_of_view(x, shape) is None
        return
    got = strides_of_view(x, shape)
    assert got is not None
    significant = [at for at, size in enumerate(shape) if size > 1]
    assert [got[at] for at in significant] == [expected[at] for at in significant]
