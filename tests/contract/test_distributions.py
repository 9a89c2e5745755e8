"""Every distribution, dtype and layout: equal bits everywhere, prefixes, shards, NumPy's names."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import nbrt
from helpers.gpu_draws import is_compiled_for_gpus
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.testing.draws import DrawCase, draw_cases

CASES = list(draw_cases())
ELEMENT = [case for case in CASES if case.layout == "element"]
# One dtype stands for all where each would be compiled once more.
FIRST = {(case.method, case.layout): case for case in reversed(CASES)}.values()
ROWS_OF_K = ("dirichlet", "multinomial", "multivariate_hypergeometric")
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture
def drawer(device: nbrt.Device) -> nbrt.Device:
    """A device that can draw."""
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return device


@every_case
def test_equal_bits_on_devices_and_prefixes(drawer: nbrt.Device, case: DrawCase) -> None:
    if drawer.kind == "cuda" and not case.is_exact:
        pytest.skip("torch's layout uses the GPU's own approximations here")
    if drawer.kind == "cuda" and not is_compiled_for_gpus(case):
        pytest.skip("computed as a float32 and rounded, as other draws of the dtype")
    whole = case.draw(7, 501, drawer)
    assert whole.dtype.name == case.dtype
    if whole.dtype.kind in "fV":
        assert np.isfinite(whole.astype(np.float64)).all()
    last = nbrt.Device(drawer.kind, nbrt.device_count(drawer.kind) - 1)
    with nbrt.device(last), nbrt.stream(nbrt.Stream(last)):
        assert case.draw(7, 501, last).tobytes() == whole.tobytes()
    if case.layout != "torch":  # whose grids depend on the size
        part = case.draw(7, 99, drawer)
        assert part.tobytes() == whole[: len(part)].tobytes()
    assert case.draw(8, 501, drawer).tobytes() != whole.tobytes()


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_shards_are_parts_of_the_whole(drawer: nbrt.Device, case: DrawCase) -> None:
    if any(isinstance(value, tuple) for value in case.parameters.values()):
        pytest.skip("parameters with a value for each element: tested beside the kernels")
    gpu = "V100" if case.layout == "torch" else None
    whole_generator = nbrt.Generator(5, drawer, case.layout, gpu=gpu)
    whole = nbrt.to_host(draw(whole_generator, case, (9, 14)))
    for region in (
        (slice(3, 7), slice(None)),
        (slice(None), slice(5, 9)),
        (slice(1, 9, 3), slice(0, 14, 2)),
        (slice(None), slice(13, 14)),
    ):
        shard = nbrt.Generator(5, drawer, case.layout, gpu=gpu).shard((9, 14), region)
        part = nbrt.to_host(draw(shard, case, None))
        assert np.ascontiguousarray(whole[region]).tobytes() == part.tobytes()
        assert shard.state == whole_generator.state


def draw(generator: nbrt.Generator, case: DrawCase, size: Any) -> Any:
    return getattr(generator, case.method)(size=size, dtype=case.dtype, **case.parameters)


NUMPYS = [
    name
    for name in dir(np.random.Generator)
    if not name.startswith("_") and callable(getattr(np.random.Generator, name))
]


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_methods_and_signatures(name: str) -> None:
    theirs = inspect.signature(getattr(np.random.Generator, name)).parameters
    ours = inspect.signature(getattr(nbrt.Generator, name)).parameters
    positional = [one for one, parameter in theirs.items() if parameter.kind != "KEYWORD_ONLY"]
    assert list(ours)[: len(positional)] == positional
    for one, parameter in theirs.items():
        assert ours[one].default == parameter.default, one
        assert ours[one].kind == parameter.kind, one
    assert set(ours) - set(theirs) <= {"dtype", "out"}


@pytest.mark.parametrize("case", [case for case in FIRST if case.layout == "element"], ids=str)
def test_out_of_any_strides(drawer: nbrt.Device, case: DrawCase) -> None:
    if case.method in ROWS_OF_K:
        pytest.skip("its last axis has the length of the parameters")
    if any(isinstance(value, tuple) for value in case.parameters.values()):
        pytest.skip("its last axis has the length of the parameters")
    generator = nbrt.Generator(5, drawer)
    expected = nbrt.to_host(draw(generator.clone(), case, (4, 6)))
    wide = nbrt.zeros((4, 13), expected.dtype, device=drawer)
    turned = nbrt.zeros((6, 4), expected.dtype, device=drawer).T
    for out in (nbrt.zeros((4, 6), expected.dtype, device=drawer), wide[:, 1::2], turned):
        method = getattr(generator.clone(), case.method)
        assert method(dtype=case.dtype, out=out, **case.parameters) is out
        assert nbrt.to_host(out).tobytes() == expected.tobytes()
    assert not nbrt.to_host(wide)[:, ::2].any()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("exponential", {"scale": -1.0}, "scale"),
    ("gamma", {"shape": -1.0}, "shape"),
    ("gamma", {"shape": [1.0, -1.0]}, "shape"),
    ("beta", {"a": 0.0, "b": 1.0}, "a"),
    ("chisquare", {"df": 0.0}, "df"),
    ("poisson", {"lam": -1.0}, "lam"),
    ("binomial", {"n": -1, "p": 0.5}, "n"),
    ("binomial", {"n": 3, "p": 1.5}, r"p in \[0, 1\]"),
    ("geometric", {"p": 0.0}, "p"),
    ("bernoulli", {"p": -0.1}, r"p in \[0, 1\]"),
    ("hypergeometric", {"ngood": 2, "nbad": 2, "nsample": 5}, "nsample"),
    ("zipf", {"a": 1.0}, "a"),
    ("logseries", {"p": 1.0}, "p"),
    ("triangular", {"left": 0.0, "mode": 2.0, "right": 1.0}, "mode"),
    ("truncated_normal", {"low": 2.0, "high": 1.0}, "low"),
    ("weibull", {"a": -1.0}, "a"),
    ("pareto", {"a": 0.0}, "a"),
    ("wald", {"mean": 0.0, "scale": 1.0}, "mean"),
    ("vonmises", {"mu": 0.0, "kappa": -1.0}, "kappa"),
    ("dirichlet", {"alpha": [1.0, -0.1]}, "alpha"),
    ("dirichlet", {"alpha": 1.0}, "alpha to be a vector"),
    ("multinomial", {"n": 3, "pvals": [0.7, 0.7, 0.1]}, "pvals"),
    ("lognormal", {"sigma": float("nan")}, "sigma to be finite"),
    ("normal", {"loc": "x"}, "loc to be a real number"),
    ("integers", {"low": [0, 5], "high": [4, 5]}, "low < high"),
    ("integers", {"low": [None], "high": [4]}, "low to be integers"),
]


@pytest.mark.parametrize(("method", "parameters", "message"), WRONG)
def test_wrong_parameters_take_nothing(
    drawer: nbrt.Device, method: str, parameters: dict[str, Any], message: str
) -> None:
    generator = nbrt.Generator(5, drawer)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        getattr(generator, method)(size=2, **parameters)
    assert generator.state == nbrt.PhiloxState(5, 0)


def test_parameters_of_each_element(drawer: nbrt.Device) -> None:
    """An array of parameters gives what each of them alone gives at that element."""
    means = np.array([[0.0], [1.0], [-3.0]])
    scales = [1.0, 0.5, 2.0, 0.0]
    together = nbrt.to_host(nbrt.Generator(5, drawer).normal(means, scales))
    assert together.shape == (3, 4)
    for row, mean in enumerate(means[:, 0]):
        for column, scale in enumerate(scales):
            alone = nbrt.to_host(nbrt.Generator(5, drawer).normal(mean, scale, (3, 4)))
            assert together[row, column] == alone[row, column]
    device_means = nbrt.asarray(means, device=drawer)
    again = nbrt.Generator(5, drawer).normal(device_means, scales, size=(3, 4))
    assert np.array_equal(nbrt.to_host(again), together)
    with pytest.raises(ArgumentError, match="broadcast"):
        nbrt.Generator(5, drawer).normal(means, [1.0, 2.0, 3.0], size=(3, 4))


def test_short_floats_of_samplers_are_float32_rounded(drawer: nbrt.Device) -> None:
    wide = nbrt.to_host(nbrt.Generator(5, drawer).gamma(2.5, 2.0, (4, 6), "float32"))
    for dtype in ("float16", "bfloat16"):
        generator = nbrt.Generator(5, drawer)
        short = nbrt.to_host(generator.gamma(2.5, 2.0, (4, 6), dtype))
        assert short.dtype.name == dtype
        assert np.array_equal(short, wide.astype(short.dtype))
        assert generator.state.offset == 4 * 24
        out = nbrt.zeros((6, 4), short.dtype, device=drawer).T
        assert nbrt.Generator(5, drawer).gamma(2.5, 2.0, dtype=dtype, out=out) is out
        assert np.array_equal(nbrt.to_host(out), short)
        assert nbrt.Generator(5, drawer).gamma(2.5, 2.0, dtype=dtype) == short[0, 0]
        part = nbrt.Generator(5, drawer).shard((4, 6), (slice(1, 3), slice(2, 5)))
        assert np.array_equal(nbrt.to_host(part.gamma(2.5, 2.0, dtype=dtype)), short[1:3, 2:5])


def test_dropout(drawer: nbrt.Device) -> None:
    x = nbrt.asarray(np.arange(1.0, 1001.0, dtype=np.float32).reshape(40, 25), device=drawer)
    generator = nbrt.Generator(5, drawer)
    result, mask = (nbrt.to_host(array) for array in generator.dropout(x, 0.25))
    assert mask.dtype == np.bool_
    assert generator.state.offset == 1000
    scaled = nbrt.to_host(x) * np.float32(1 / 0.75)
    assert np.array_equal(result, np.where(mask, scaled, np.float32(0)))
    # Binomial(1000, 0.75): six standard deviations around the mean (fixed seed).
    assert abs(int(mask.sum()) - 750) < 6 * 13.7
    for p, training, kept in ((0.0, True, True), (1.0, True, False), (0.5, False, True)):
        result, mask = (nbrt.to_host(a) for a in generator.dropout(x, p, training))
        assert np.array_equal(result, nbrt.to_host(x) * np.float32(kept))
        assert mask.all() == kept
    assert generator.state.offset == 1000
    turned, turned_mask = nbrt.Generator(5, drawer).dropout(x.T, 0.25)
    assert turned.shape == turned_mask.shape == (25, 40)
    with pytest.raises(ArgumentError, match=r"p in \[0, 1\]"):
        generator.dropout(x, 1.5)
    with pytest.raises(ArgumentTypeError, match="dtype of float32"):
        generator.dropout(np.arange(3), 0.5)
