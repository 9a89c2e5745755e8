"""One case for every kind of draw, to compare the bits of devices, versions and layouts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbrt.random import Generator
from nbrt.runtime.array import to_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.typing import DeviceLike, HostArray

__all__ = ["DrawCase", "draw_cases"]

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_INTEGERS = ("int64", "int32")

_CONTINUOUS: dict[str, dict[str, Any]] = {
    "random": {},
    "uniform": {"low": -1.5, "high": 3.25},
    "standard_normal": {},
    "normal": {"loc": 0.5, "scale": 2.0},
    "lognormal": {"mean": 0.25, "sigma": 0.5},
    "exponential": {"scale": 1.5},
    "gamma": {"shape": 2.5, "scale": 1.5},
    "beta": {"a": 0.5, "b": 2.0},
    "chisquare": {"df": 3.0},
    "noncentral_chisquare": {"df": 3.0, "nonc": 1.5},
    "f": {"dfnum": 5.0, "dfden": 9.0},
    "noncentral_f": {"dfnum": 5.0, "dfden": 9.0, "nonc": 2.0},
    "standard_t": {"df": 4.0},
    "cauchy": {"median": 0.5, "sigma": 2.0},
    "laplace": {"loc": 0.5, "scale": 2.0},
    "logistic": {"loc": 0.5, "scale": 2.0},
    "gumbel": {"loc": 0.5, "scale": 2.0},
    "weibull": {"a": 1.7},
    "pareto": {"a": 3.0},
    "power": {"a": 2.5},
    "rayleigh": {"scale": 2.0},
    "triangular": {"left": -1.0, "mode": 0.5, "right": 3.0},
    "vonmises": {"mu": 0.5, "kappa": 4.0},
    "wald": {"mean": 2.0, "scale": 3.0},
    "truncated_normal": {"loc": 0.5, "scale": 2.0, "low": -1.0, "high": 4.0},
    "dirichlet": {"alpha": (0.5, 1.0, 3.0)},
}
_DISCRETE: dict[str, dict[str, Any]] = {
    "integers": {"low": 3, "high": 100},
    "geometric": {"p": 0.3},
    "poisson": {"lam": 3.5},
    "binomial": {"n": 40, "p": 0.4},
    "negative_binomial": {"n": 5, "p": 0.4},
    "hypergeometric": {"ngood": 20, "nbad": 30, "nsample": 25},
    "logseries": {"p": 0.6},
    "zipf": {"a": 3.0},
    "multinomial": {"n": 20, "pvals": (0.2, 0.3, 0.5)},
    "multivariate_hypergeometric": {"colors": (8, 5, 3), "nsample": 7},
}
_TORCH: dict[str, tuple[str, ...]] = {
    "random": _FLOATS,
    "uniform": _FLOATS,
    "standard_normal": _FLOATS,
    "normal": _FLOATS,
    "lognormal": _FLOATS,
    "exponential": _FLOATS,
    "cauchy": _FLOATS,
    "integers": _INTEGERS,
    "bernoulli": ("float32", "float64"),
    "geometric": ("float32", "float64"),
}
_OTHERS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("integers", {"low": -(2**40), "high": 2**40 + 3}, "int64"),
    ("integers", {"low": 0, "high": 2**64}, "uint64"),
    ("integers", {"low": 0, "high": 3 * 2**29}, "int32"),
    ("integers", {"low": 0, "high": 2}, "bool"),
    ("integers", {"low": (0, -5, 7), "high": (10, 5, 2**31)}, "int64"),
    ("random_bits", {}, "uint32"),
    ("random_bits", {}, "uint64"),
    ("bernoulli", {"p": 0.3}, "bool"),
    ("bernoulli", {"p": 0.3}, "float32"),
    ("bernoulli", {"p": (0.1, 0.5, 0.9)}, "bool"),
    ("normal", {"loc": (0.0, 1.0, 2.0), "scale": (1.0, 0.5, 2.0)}, "float32"),
    ("gamma", {"shape": (0.1, 1.0, 50.0)}, "float64"),
    ("poisson", {"lam": (0.5, 20.0, 1e6)}, "int64"),
    ("geometric", {"p": 0.3}, "float32"),
)
_DISTRIBUTIONS = {
    "random": "uniform",
    "standard_normal": "normal",
    "lognormal": "log_normal",
    "random_bits": "bits",
}
_VECTORS = ("dirichlet", "multinomial", "multivariate_hypergeometric")


@dataclass(frozen=True)
class DrawCase:
    """A draw: method of `nbrt.Generator`, keyword arguments, dtype, and layout of the generator."""

    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    layout: str = "element"

    @property
    def distribution(self) -> str:
        """Name of the distribution, for `nbrt.random.stream_version`."""
        return _DISTRIBUTIONS.get(self.method, self.method)

    @property
    def is_exact(self) -> bool:
        """Whether the bits are equal on every device.

        In the torch layout, draws that use the approximate functions of a GPU are not.
        """
        exact = ("random", "uniform", "integers", "bernoulli")
        return self.layout != "torch" or self.method in exact

    def __str__(self) -> str:
        shown = ",".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.layout}:{self.method}({shown}):{self.dtype}".replace(" ", "")

    def draw(self, seed: int, n: int, device: DeviceLike = None, offset: int = 0) -> HostArray:
        """Return about `n` elements in host memory, in rows of three if the draw needs rows."""
        gpu = "H100 SXM" if self.layout == "torch" else None
        generator = Generator(seed, device, self.layout, gpu=gpu).advance(offset)
        size: int | tuple[int, int] = n
        if self.method in _VECTORS:
            size = -(-n // 3)
        elif any(isinstance(value, tuple) for value in self.parameters.values()):
            size = (-(-n // 3), 3)
        method = getattr(generator, self.method)
        return to_host(method(size=size, dtype=self.dtype, **self.parameters))

    def digest(self, seed: int, n: int, device: DeviceLike = None, offset: int = 0) -> str:
        """Return the SHA-256 hash of the little-endian bits of `draw`."""
        values = self.draw(seed, n, device, offset)
        return hashlib.sha256(values.tobytes()).hexdigest()


def draw_cases() -> Iterator[DrawCase]:
    """Yield every distribution in all its dtypes and layouts."""
    for method, parameters in _CONTINUOUS.items():
        for dtype in _FLOATS:
            yield DrawCase(method, parameters, dtype)
    for method, parameters in _DISCRETE.items():
        for dtype in _INTEGERS:
            yield DrawCase(method, parameters, dtype)
    for method, parameters, dtype in _OTHERS:
        yield DrawCase(method, parameters, dtype)
    for method, dtypes in _TORCH.items():
        parameters = {**_CONTINUOUS, **_DISCRETE, "bernoulli": {"p": 0.3}}[method]
        for dtype in dtypes:
            yield DrawCase(method, parameters, dtype, "torch")
    for dtype in _FLOATS:
        yield DrawCase("random", {}, dtype, "torch_stateless")
    for dtype in ("int32", "int64"):
        yield DrawCase("integers", {"low": 3, "high": 100}, dtype, "torch_stateless")
