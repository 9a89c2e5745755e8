"""Draws on fake devices: generators advance and parameters are refused as on a real device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.backends.fake.draws import UnknownValues
from nbrt.errors import ArgumentError, ArgumentTypeError, FakeReadError, NbrtError
from nbrt.testing.draws import DrawCase, draw_cases

CASES = list(draw_cases())
FIRST = list({(case.method, case.layout): case for case in reversed(CASES)}.values())
VECTORS = ("dirichlet", "multinomial", "multivariate_hypergeometric")
KINDS = ("cpu", "cuda")


def generator_of(case: DrawCase, device: str) -> nbrt.Generator:
    gpu = "V100" if case.layout == "torch" else None
    return nbrt.Generator(5, device, case.layout, gpu=gpu)


def draw(generator: nbrt.Generator, case: DrawCase, size: Any, **options: Any) -> Any:
    method = getattr(generator, case.method)
    return method(size=size, dtype=case.dtype, **case.parameters, **options)


def described(array: Any, generator: nbrt.Generator) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.strides, generator.state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_arrays_and_states_equal_those_of_a_real_device(
    kind: str, case: DrawCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case not in FIRST:  # its kernels take time to compile, and its state does not need them
        interface = nbrt.get_interface_for_device("cpu")
        monkeypatch.setattr(interface, "draw", lambda queue, out, draw: out.fill(0))
    sizes: list[Any] = [7, (5, 3), 0, 1]
    if case.method not in VECTORS and any(isinstance(v, tuple) for v in case.parameters.values()):
        sizes = [3, (5, 3), (2, 4, 3), (0, 3)]
    real = generator_of(case, "cpu:0")
    expected = [described(draw(real, case, size), real) for size in sizes]
    with nbrt.fake(kind):
        fake = generator_of(case, f"{kind}:0")
        found = [described(draw(fake, case, size), fake) for size in sizes]
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", FIRST, ids=str)
def test_outs_and_shards(kind: str, case: DrawCase) -> None:
    if any(isinstance(value, tuple) for value in case.parameters.values()):
        pytest.skip("its last axis has the length of the parameters")

    def run(device: str) -> list[Any]:
        generator = generator_of(case, device)
        whole = draw(generator, case, (9, 14))
        outs = (
            nbrt.zeros((9, 14), whole.dtype, device=device),
            nbrt.zeros((14, 9), whole.dtype, device=device),
        )
        steps = []
        for out in (outs[0], outs[1].T, outs[0][::2, 1::3]):
            assert draw(generator, case, None, out=out) is out
            steps.append(described(out, generator))
        for region in (
            (slice(3, 7), slice(None)),
            (slice(1, 9, 3), slice(0, 14, 2)),
            (slice(None), slice(13, 14)),
        ):
            shard = generator.shard((9, 14), region)
            steps.append(described(draw(shard, case, None), shard))
        return steps

    expected = run("cpu:0")
    with nbrt.fake(kind):
        assert run(f"{kind}:0") == expected


def sampled(generator: nbrt.Generator, device: str) -> list[Any]:
    x = nbrt.zeros((6, 4), "float32", device=device)
    steps: list[Any] = []

    def step(value: Any) -> None:
        arrays = value if isinstance(value, tuple) else (value,)
        shapes = [(a.shape, a.dtype) for a in arrays if hasattr(a, "shape")]
        steps.append((shapes, generator.state))

    step(generator.permutation(11))
    step(generator.permutation(x, axis=1))
    step(generator.shuffle(x))
    step(generator.permuted(x, axis=0))
    step(generator.permuted(x))
    step(generator.choice(9, 5))
    step(generator.choice(9, (2, 3), replace=False))
    step(generator.choice(x, 5, axis=1))
    step(generator.choice(3, 5, p=[0.5, 0.25, 0.25]))
    step(generator.choice(3, 2, replace=False, p=[0.5, 0.25, 0.25]))
    step(generator.multivariate_normal([0.0, 1.0], [[1.0, 0.5], [0.5, 1.0]], 7))
    step(generator.dropout(x, 0.25))
    step(generator.fill_integers(nbrt.empty(5, "uint8", device=device)))
    step(generator.kernel_state(100))
    step(generator.normal(nbrt.zeros((3, 1), device=device), 1.0, (3, 4)))
    step(generator.gamma(nbrt.full(4, 1.0, device=device)))
    step(tuple(child.random(3) for child in generator.spawn(2)))
    return steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["element", "torch"])
def test_samples_of_populations(kind: str, layout: str) -> None:
    gpu = "V100" if layout == "torch" else None

    def run(device: str) -> Any:
        generator = nbrt.Generator(3, device, layout, gpu=gpu)
        if layout == "element":
            return sampled(generator, device)
        shapes = [generator.permutation(n).shape for n in (5, 1000, 100_000)]
        return shapes, generator.state, generator.choice(9, 4, replace=False).dtype, generator.state

    expected = run("cpu:0")
    with nbrt.fake(kind):
        assert run(f"{kind}:0") == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in FIRST if c.layout == "element"], ids=str)
def test_scalars_are_read_by_the_policy(kind: str, case: DrawCase) -> None:
    if case.method in VECTORS or any(isinstance(v, tuple) for v in case.parameters.values()):
        pytest.skip("no scalar draw")
    real = generator_of(case, "cpu:0")
    expected = draw(real, case, None)
    with nbrt.fake(kind, reads="zeros"):
        fake = generator_of(case, f"{kind}:0")
        value = draw(fake, case, None)
        assert fake.state == real.state
        if kind == "cuda":
            assert (value.shape, value.dtype) == ((), expected.dtype)
            value = np.asarray(nbrt.to_host(value))[()]
        assert type(value) is type(expected)
        assert value == 0
    with nbrt.fake("cpu"), pytest.raises(FakeReadError, match=r"test_fake_program_draws\.py"):
        draw(generator_of(case, "cpu:0"), case, None)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("exponential", {"scale": -1.0}),
    ("gamma", {"shape": -1.0}),
    ("beta", {"a": 0.0, "b": 1.0}),
    ("poisson", {"lam": -1.0}),
    ("binomial", {"n": 3, "p": 1.5}),
    ("bernoulli", {"p": -0.1}),
    ("hypergeometric", {"ngood": 2, "nbad": 2, "nsample": 5}),
    ("zipf", {"a": 1.0}),
    ("triangular", {"left": 0.0, "mode": 2.0, "right": 1.0}),
    ("truncated_normal", {"low": 2.0, "high": 1.0}),
    ("normal", {"loc": [0.0, 1.0], "scale": -1.0}),
    ("normal", {"loc": "x"}),
    ("lognormal", {"sigma": float("nan")}),
    ("uniform", {"low": 2.0, "high": 1.0}),
    ("uniform", {"low": 0.0, "high": 1e40, "dtype": "float32"}),
    ("random", {"dtype": "int32"}),
    ("poisson", {"lam": 1.0, "dtype": "float32"}),
    ("hypergeometric", {"ngood": [0.5], "nbad": 2, "nsample": 1}),
    ("integers", {"low": 5, "high": 5}),
    ("integers", {"low": 0, "high": 300, "dtype": "uint8"}),
    ("integers", {"low": [0, 5], "high": [4, 5]}),
    ("dirichlet", {"alpha": 1.0}),
    ("multinomial", {"n": -3, "pvals": [0.7, 0.3]}),
    ("gamma", {"shape": [1.0, 2.0], "size": 3}),
    ("choice", {"a": 3, "size": 5, "replace": False}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "parameters"), WRONG)
@pytest.mark.parametrize("size", [4, 0])
def test_refuses_what_a_real_device_refuses(
    kind: str, method: str, parameters: dict[str, Any], size: int
) -> None:
    options = {"size": size, **parameters}

    def outcome(device: str) -> Any:
        generator = nbrt.Generator(3, device)
        try:
            getattr(generator, method)(**options)
        except NbrtError as error:
            # Values of arrays are unknown.
            text = str(error).replace(kind, "cpu").replace("[0.0, 1.0]", "[?, ?]")
            return type(error), text, generator.state
        return generator.state

    expected = outcome("cpu:0")
    with nbrt.fake(kind):
        assert outcome(f"{kind}:0") == expected


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_an_out_of_another_device(kind: str) -> None:
    with nbrt.fake(kind, devices=2):
        generator = nbrt.Generator(3, f"{kind}:0")
        other = nbrt.empty(3, "float64", device=f"{kind}:1")
        with pytest.raises(ValueError, match=f"out on {kind}:0, got an array of {kind}:1"):
            generator.random(out=other)
        assert generator.state.offset == 0


def by_torchs_names(device: str) -> list[Any]:
    random = nbrt.random
    x = nbrt.zeros((4, 6), "float32", device=device)
    steps: list[Any] = []
    for call in (
        lambda: random.rand(3, 4, device=device),
        lambda: random.randn(3, 4, device=device),
        lambda: random.randint(0, 9, (7,), device=device),
        lambda: random.randperm(9, device=device),
        lambda: random.rand_like(x),
        lambda: random.normal_(x),
        lambda: random.uniform_(x[:, ::2]),
        lambda: random.random_(x.T),
        lambda: random.trunc_normal_(x),
        lambda: random.bernoulli_(x, 0.5),
        lambda: random.dropout(x),
    ):
        found = call()
        arrays = found if isinstance(found, tuple) else (found,)
        shapes = [(a.shape, a.dtype) for a in arrays]
        steps.append((shapes, nbrt.default_generator(device).state))
    return steps


@pytest.mark.parametrize("kind", KINDS)
def test_default_generators_advance_and_come_back(kind: str) -> None:
    with nbrt.random.isolated_default_generators():
        nbrt.manual_seed(11)
        before = nbrt.default_generator("cpu:0").state
        with nbrt.fake(kind):
            nbrt.manual_seed(11)
            assert nbrt.default_generator(f"{kind}:0").state == before
            found = by_torchs_names(f"{kind}:0")
        nbrt.manual_seed(11)
        assert nbrt.default_generator("cpu:0").state == before
        assert by_torchs_names("cpu:0") == found


def test_unknown_values_have_the_shapes_and_dtypes_of_numpy() -> None:
    unknown = UnknownValues((4, 6), np.dtype("float32"))
    known = np.ones((4, 6), np.float32)
    for function in (
        lambda x: x + np.float64(1),
        lambda x: np.isfinite(x) & (x > 0),
        lambda x: x[:, :-1].astype("f8").sum(axis=1) > 1,
        lambda x: np.where(x > 0, x, x.astype("f8")),
        lambda x: np.reshape(x, (-1, 3)),
        lambda x: np.maximum(x[0], np.float32(1)) % x[1],
        lambda x: x.view("u4"),
        lambda x: ~(x < 1),
    ):
        found, expected = function(unknown), function(known)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert (found.ndim, found.itemsize, len(found)) == (
            expected.ndim,
            expected.itemsize,
            len(expected),
        )
    assert np.all(unknown > 2)
    assert not (unknown > 2).any()
    with pytest.raises(TypeError):
        np.sort(unknown)


def test_bad_arguments_stay_bad_with_arrays() -> None:
    with nbrt.fake("cpu"):
        generator = nbrt.Generator(3, "cpu")
        with pytest.raises(ArgumentError, match=r"scale >= 0, got loc in \[\?, \?\]"):
            generator.normal(nbrt.zeros(4), -1.0)
        with pytest.raises(ArgumentTypeError, match="integers"):
            generator.binomial(nbrt.zeros(4), 0.5)
        assert generator.state.offset == 0
