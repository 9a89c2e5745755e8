"""`__nbrt_random__`: arrays of others take part in the functions of nbrt.random."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable


class Foreign:
    """Holds an array, and passes that array to functions instead of itself."""

    def __init__(self, shape: tuple[int, ...] = (2, 3)) -> None:
        self.array = np.full(shape, 0.5, np.float32)
        self.seen: list[Any] = []

    def __nbrt_random__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.append(function)
        assert isinstance(args, tuple)
        assert isinstance(kwargs, dict)

        def plain(value: Any) -> Any:
            return value.array if isinstance(value, Foreign) else value

        named = {name: plain(value) for name, value in kwargs.items()}
        return "foreign", function(*map(plain, args), **named)


class Refusing(Foreign):
    """Knows no function."""

    def __nbrt_random__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.append(function)
        return NotImplemented


R = nbrt.random
CALLS: dict[Callable[..., Any], Callable[[Any], Any]] = {
    R.rand: lambda x: R.rand(out=x),
    R.randn: lambda x: R.randn((2, 3), out=x),
    R.randint: lambda x: R.randint(0, 5, (2, 3), out=x, dtype="float32"),
    R.rand_like: R.rand_like,
    R.randn_like: lambda x: R.randn_like(array=x),
    R.randint_like: lambda x: R.randint_like(x, 5, dtype="int64"),
    R.normal: lambda x: R.normal(0.0, x),
    R.bernoulli: R.bernoulli,
    R.dropout: lambda x: R.dropout(x, 0.5),
    R.multinomial: lambda x: R.multinomial(x, 2),
    R.uniform_: R.uniform_,
    R.normal_: R.normal_,
    R.trunc_normal_: R.trunc_normal_,
    R.log_normal_: R.log_normal_,
    R.exponential_: R.exponential_,
    R.cauchy_: R.cauchy_,
    R.geometric_: lambda x: R.geometric_(x, 0.5),
    R.bernoulli_: lambda x: R.bernoulli_(np.zeros((2, 3), np.float32), x),
    R.random_: R.random_,
}


@pytest.fixture(autouse=True)
def own() -> Any:
    with R.isolated_default_generators():
        yield


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_functions_are_dispatched(function: Callable[..., Any]) -> None:
    x = Refusing()
    before = R.get_offset()
    with pytest.raises(ArgumentTypeError, match=f"random.{function.__name__} supports, got R"):
        CALLS[function](x)
    assert x.seen == [function]
    assert R.get_offset() == before


def test_every_function_with_arrays_is_dispatched() -> None:
    names = {name for name in R.__all__ if name.endswith(("_", "_like"))}
    assert names <= {function.__name__ for function in CALLS}


def test_what_the_method_returns_is_returned() -> None:
    R.manual_seed(3)
    x = Foreign()
    tag, array = R.rand_like(x)
    assert tag == "foreign"
    assert np.array_equal(array, nbrt.Generator(3).random((2, 3), "float32"))
    assert x.seen == [R.rand_like]
    # By name, and in place.
    assert R.uniform_(array=x, low=2.0, high=3.0)[1] is x.array
    assert (x.array >= 2.0).all()


def test_arguments_are_tried_from_left_to_right() -> None:
    refusing: Any = Refusing()
    x: Any = Foreign()
    # The first declines, the second gives plain arrays for both.
    tag, array = R.normal(refusing, x)
    assert tag == "foreign"
    assert array.shape == (2, 3)
    assert (refusing.seen, x.seen) == ([R.normal], [R.normal])
    R.normal(x, refusing)
    assert len(refusing.seen) == 1


def test_an_attribute_of_an_instance_does_not_count() -> None:
    class Proxy(np.ndarray):
        def __getattr__(self, name: str) -> Any:
            return name

    x = np.zeros((2, 3), np.float32).view(Proxy)
    assert R.uniform_(x) is x
    assert np.asarray(x).any()


def test_signatures_are_kept() -> None:
    for function in CALLS:
        assert "generator" in inspect.signature(function).parameters
        assert function.__doc__
        assert function.__module__ in ("nbrt.random.functions", "nbrt.random.functions")
