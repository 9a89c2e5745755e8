"""Arguments of generators that NumPy converts or refuses: nbrt does the same with them.

Draws with only one possible value are compared with NumPy's, refusals by their classes.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.random import PhiloxState

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.typing import HostArray

    Draw = Callable[[Any], Any]


@pytest.fixture
def generator(device: nbrt.Device) -> nbrt.Generator:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return nbrt.Generator(7, device)


def on_host(value: Any) -> HostArray:
    return np.asarray(value if isinstance(value, np.ndarray) else nbrt.to_host(value))


MOST = 2**64 - 1

CERTAIN: dict[str, Draw] = {
    "int64 list": lambda g: g.integers([2**53 + 1, -(2**63)], [2**53 + 2, 1 - 2**63]),
    "object array": lambda g: g.integers(np.array([3, 2**62 + 1], object), [4, 2**62 + 2]),
    "float bounds": lambda g: g.integers([2.5, -2.5], np.array([3.9, -1.0])),
    "float numbers": lambda g: g.integers(2.5, 3.9, 4),
    "words of integers": lambda g: g.integers(["5"], ["6"]),
    "range of bounds": lambda g: g.integers(range(3), range(1, 4)),
    "range of means": lambda g: g.normal(range(3), 0.0),
    "decimals": lambda g: g.normal([Decimal("1.5"), 2], 0.0),
    "words of means": lambda g: g.normal(["1.5", "2"], 0.0),
    "large integers": lambda g: g.normal([2**64 + 1, 2**53 + 1, -1], 0.0),
    "bool means": lambda g: g.normal([True, 2.5], 0.0),
    "other byte order": lambda g: g.normal(np.array([1.5, 2.5], ">f8"), np.zeros(2, ">f4")),
    "counts in another byte order": lambda g: g.binomial(np.array([3, 5], ">i2"), 1.0),
    "counts with a fraction": lambda g: g.binomial([3.9, 2**60 + 1], 1.0),
    "a count with a fraction": lambda g: g.binomial(np.float32(3.9), 1.0, 2),
    "hypergeometric counts": lambda g: g.hypergeometric([5.5, 3], 0.5, 2.9),
    "trials with a fraction": lambda g: g.multinomial([2.7, 3], [1.0]),
    "words of chances": lambda g: g.multinomial(5, ["1.0", "0"]),
    "bools of chances": lambda g: g.multinomial(5, [[True, False], [False, True]]),
    "a mask of chances": lambda g: g.choice(3, 4, p=np.array([False, True, False])),
    "bools of concentrations": lambda g: g.dirichlet([True]),
    "bool means of a vector": lambda g: g.multivariate_normal([False, True], np.zeros((2, 2))),
    "shape 0": lambda g: g.standard_gamma(0, 3),
    "shapes of 0": lambda g: g.gamma([[0], [0.0]], [1.0, 2.0, 0.0]),
    "float32 shape 0": lambda g: g.standard_gamma(0.0, 3, np.float32),
    "weibull shape 0": lambda g: g.weibull(0, 3),
    "weibull shapes of 0": lambda g: g.weibull([0.0, 0.0]),
    "no concentration": lambda g: g.dirichlet([0.0, -0.0, 0.0], 2),
    "no outcomes": lambda g: g.dirichlet([], 2),
    "no colors": lambda g: g.multivariate_hypergeometric([], 0, (2, 1)),
    "nan of one": lambda g: g.noncentral_f(5, 2, np.nan),
    "nans": lambda g: g.noncentral_chisquare([1.0, 2.0], [np.nan, np.nan]),
    "nan concentration": lambda g: g.vonmises(0.0, np.nan, 3),
    "nan without dimensions": lambda g: g.vonmises(0.0, np.array(np.nan), 3),
    "a negative zero that is none": lambda g: g.poisson([-0.0]),
    "nothing of no range": lambda g: g.integers(5, 5, (3, 0)),
    "nothing of lists": lambda g: g.integers([5, 5], [1, 2], (0, 2), dtype="int8"),
    "no vectors": lambda g: g.multinomial(12, np.empty((3, 0, 4))),
    "no trials": lambda g: g.multinomial(np.empty((3, 0), "i8"), [0.5, 0.5]),
    "array of sizes": lambda g: g.normal(1.0, 0.0, np.array((2, 3))),
    "range of sizes": lambda g: g.normal(1.0, 0.0, range(1, 3)),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_certain_values_are_numpys(generator: nbrt.Generator, name: str) -> None:
    draw = CERTAIN[name]
    expected = np.asarray(draw(np.random.default_rng(1)))
    found = on_host(draw(generator))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


FLOAT32_CHANCES = np.array([0.99, 0.99, *[1e-9] * 8], np.float32)
FLOAT32_CHANCES /= FLOAT32_CHANCES.sum()
"""Of sum 1 in float32, and more in float64."""

REFUSED: dict[str, Draw] = {
    "word": lambda g: g.normal("1.5"),
    "none in a list of counts": lambda g: g.binomial([None], 0.5),
    "none in bounds": lambda g: g.integers([None]),
    "complex list": lambda g: g.normal([1 + 1j]),
    "complex counts": lambda g: g.binomial(3 + 0j, 0.5),
    "complex mean": lambda g: g.multivariate_normal([0j], [[1.0]]),
    "complex covariance": lambda g: g.multivariate_normal([0.0], np.array([[1 + 1j]])),
    "objects of means": lambda g: g.normal(np.array([1.0], object)),
    "objects of counts": lambda g: g.binomial(np.array([1], object), 0.5),
    "words of means": lambda g: g.normal(np.array(["1.5"])),
    "no number": lambda g: g.normal(["x"]),
    "too large a mean": lambda g: g.normal(10**400),
    "too large means": lambda g: g.normal([10**400]),
    "too large counts": lambda g: g.binomial([MOST, 10], 0.5),
    "too large a count": lambda g: g.binomial(2**63, 0.5),
    "too low a count": lambda g: g.binomial(-(2**63) - 1, 0.5),
    "too large a sample": lambda g: g.hypergeometric(1, 1, 2**63),
    "too many trials": lambda g: g.multinomial(1e300, [0.5, 0.5]),
    "too many failures": lambda g: g.negative_binomial(2**62, 0.1),
    "too many failures each": lambda g: g.negative_binomial([2**62], [0.1]),
    "nan bounds": lambda g: g.integers([np.nan, 2.0]),
    "infinite bound": lambda g: g.uniform(-np.inf, 0.0),
    "infinite bounds": lambda g: g.uniform([0.0], [np.inf]),
    "too wide a range": lambda g: g.uniform(-1.7e308, 1.7e308),
    "bounds out of order": lambda g: g.uniform(2.0, 1.0),
    "negative zero scale": lambda g: g.exponential(-0.0),
    "negative zero scales": lambda g: g.normal(0.0, [1.0, -0.0]),
    "negative zero shape": lambda g: g.gamma(-0.0, 1.0),
    "negative zero shapes": lambda g: g.standard_gamma([-0.0]),
    "negative zero weibull": lambda g: g.weibull([-0.0]),
    "negative zero kappa": lambda g: g.vonmises(0.0, -0.0),
    "beta of 0": lambda g: g.beta(0.0, 1.0),
    "other byte order": lambda g: g.integers(5, dtype=">i4"),
    "float dtype": lambda g: g.integers(5, dtype=float),
    "sum of float32 chances": lambda g: g.multinomial(1, FLOAT32_CHANCES),
    "sum of the second chances": lambda g: g.multinomial(1, [[0.5, 0.5, 0.0], [1.1, 0.2, 0.0]]),
    "no chances": lambda g: g.multinomial(5, [[], []]),
    "chances in no vector": lambda g: g.multinomial(5, 0.5),
    "sizes of chances": lambda g: g.multinomial(5, [[1.0], [1.0]], (3,)),
    "ranges that do not broadcast": lambda g: g.integers([0, 0], [1, 2, 3]),
    "one of no colors": lambda g: g.multivariate_hypergeometric([], 1),
    "choice of a float": lambda g: g.choice(3.0, 3),
    "choice of a set": lambda g: g.choice({1, 2}),
    "permutation of a word": lambda g: g.permutation("abc"),
    "permutation of a float": lambda g: g.permutation(1.5),
    "permutation axis": lambda g: g.permutation(np.arange(3), 1),
    "shuffle axis": lambda g: g.shuffle(np.ones((3, 2)), 2),
    "shuffle axis of a list": lambda g: g.shuffle([[1, 2], [3, 4]], 1),
    "shuffle axis of objects": lambda g: g.shuffle(np.array([None, 1]), 1),
    "permuted number": lambda g: g.permuted(5),
    "permuted word": lambda g: g.permuted("abc"),
    "permuted array without axes": lambda g: g.permuted(np.array(5)),
    "permuted axis": lambda g: g.permuted([3, 4], axis=3),
    "permuted into integers": lambda g: g.permuted([1.5, 2.5], out=np.zeros(2, int)),
    "permuted into another shape": lambda g: g.permuted([1.5, 2.5], out=np.zeros(3)),
    "no factor": lambda g: g.multivariate_normal([0, 0], [[1, 2], [2, 1]], method="cholesky"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_by_numpy(generator: nbrt.Generator, name: str) -> None:
    draw = REFUSED[name]
    with pytest.raises((ArithmeticError, RuntimeError, TypeError, ValueError)) as theirs:
        draw(np.random.default_rng(1))
    with pytest.raises(nbrt.errors.NbrtError, match="expected") as ours:
        draw(generator)
    kinds: tuple[type[Exception], ...] = (theirs.type,)
    if generator.device.kind == "cuda":  # where host arrays cannot be written
        kinds += (nbrt.errors.DeviceMismatchError,)
    assert isinstance(ours.value, kinds), (ours.value, theirs.value)
    assert generator.state == PhiloxState(7, 0)


def test_bounds_of_a_list_are_exact(generator: nbrt.Generator) -> None:
    """NumPy makes float64 of such a list, which rounds its bounds."""
    drawn = on_host(generator.integers(0, [MOST, 10], (500, 2), "uint64"))
    assert drawn.dtype == np.uint64
    assert drawn[:, 0].max() > 2**63
    assert drawn[:, 1].max() == 9
    for endpoint in (False, True):
        bounds = [MOST - 1, 9], [MOST - endpoint, 10 - endpoint]
        only = on_host(generator.integers(*bounds, None, "uint64", endpoint))
        assert only.tolist() == [MOST - 1, 9]
    low = MOST - 2
    exact = on_host(generator.integers([low, 0], [MOST, 1], (200, 2), "uint64"))
    assert set(exact[:, 0].tolist()) == {low, low + 1}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_leaves_its_neighbours_alone(generator: nbrt.Generator, dtype: str) -> None:
    for draw in (
        lambda g, one: g.vonmises(0.5, [1.0, one, 3.0], dtype=dtype),
        lambda g, one: g.noncentral_chisquare(3.0, [1.0, one, 30.0], dtype=dtype),
        lambda g, one: g.noncentral_f(3.0, [4.0, 5.0, 6.0], [1.0, one, 30.0], dtype=dtype),
    ):
        plain = on_host(draw(generator.clone(), 2.0))
        holed = on_host(draw(generator.clone(), np.nan))
        assert np.isnan(holed).tolist() == [False, True, False]
        assert np.array_equal(plain[[0, 2]], holed[[0, 2]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_shapes_of_0_leave_their_neighbours_alone(generator: nbrt.Generator, dtype: str) -> None:
    for draw in (
        lambda g, one: g.gamma([0.5, one, 3.0], 2.0, (40, 3), dtype),
        lambda g, one: g.weibull([0.5, one, 3.0], (40, 3), dtype),
    ):
        plain = on_host(draw(generator.clone(), 2.0))
        holed = on_host(draw(generator.clone(), 0.0))
        assert not holed[:, 1].any()
        assert plain[:, 1].all()
        assert np.array_equal(plain[:, [0, 2]], holed[:, [0, 2]])
    vectors = on_host(generator.dirichlet([0.5, 0.0, 3.0, 0.0, 1e-5], 40, dtype))
    assert not vectors[:, [1, 3]].any()
    np.testing.assert_allclose(vectors.sum(axis=1), 1.0, rtol=2e-3)


def test_chances_of_each_vector(generator: nbrt.Generator) -> None:
    """A vector depends on its chances and its place alone."""
    rows = np.array([[0.2, 0.3, 0.5], [0.7, 0.1, 0.2]])
    both = on_host(generator.clone().multinomial([[20], [50], [9]], rows))
    assert both.shape == (3, 2, 3)
    for column, chances in enumerate(rows):
        one = on_host(generator.clone().multinomial([[20], [50], [9]], chances, (3, 2)))
        assert np.array_equal(both[:, column], one[:, column])
    many = on_host(generator.multinomial(1000, rows, (300, 2)))
    assert np.array_equal(many.sum(axis=-1), np.full((300, 2), 1000))
    # Six standard deviations of a mean of 300 binomials.
    deviation = np.sqrt(1000 * rows * (1 - rows) / 300)
    assert (np.abs(many.mean(axis=0) - 1000 * rows) < 6 * deviation).all()


THINGS = np.array([None, "a", (1, 2), 4.5, [1], {2: 3}], object)


def test_python_objects_are_picked_and_moved(generator: nbrt.Generator) -> None:
    def same(order: Any, things: Any) -> bool:
        return all(things[at] is THINGS[index] for at, index in enumerate(on_host(order).tolist()))

    assert same(generator.clone().permutation(6), generator.clone().permutation(THINGS))
    for replace in (True, False):
        picks = generator.clone().choice(6, 4, replace)
        assert same(picks, generator.clone().choice(THINGS, 4, replace))
    moved = THINGS.copy()
    generator.clone().shuffle(moved)
    assert same(generator.clone().permutation(6), moved)
    into = np.empty(6, object)
    assert generator.clone().permuted(THINGS, out=into) is into
    assert same(generator.clone().permutation(6), into)
    table = np.stack([THINGS, THINGS])
    lines = generator.clone().permuted(table, axis=1)
    order = on_host(generator.clone().permuted(np.arange(12).reshape(2, 6), axis=1)) % 6
    assert all(same(picks, line) for picks, line in zip(order, lines, strict=True))
    one = generator.clone().choice(THINGS)
    assert any(one is each for each in THINGS)
    held = generator.choice([None], ())
    assert held.shape == ()
    assert held.item() is None


def test_a_mask_moves_with_its_values(device: nbrt.Device) -> None:
    if device.kind != "cpu":
        pytest.skip("masked arrays are arrays of the host")
    generator = nbrt.Generator(7, device)
    values = np.ma.masked_equal(np.arange(20) % 3, 1)
    generator.shuffle(values)
    assert np.array_equal(values.mask, values.data == 1)


def test_scalars_of_python_types(device: nbrt.Device) -> None:
    if device.kind != "cpu":
        pytest.skip("scalars are arrays on other devices")
    generator = nbrt.Generator(7, device)
    assert type(generator.integers(5, dtype=int)) is int
    assert type(generator.integers(2, dtype=bool)) is bool
    assert type(generator.integers(5)) is np.int64


def test_an_array_like_without_dimensions_of_its_own(generator: nbrt.Generator) -> None:
    class Held:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
            return np.arange(5, dtype=dtype)

    expected = on_host(generator.clone().permutation(np.arange(5)))
    assert np.array_equal(on_host(generator.clone().permutation(Held())), expected)
    assert int(generator.choice(Held())) in range(5)
