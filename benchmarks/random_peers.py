"""Contenders that draw random numbers on the CPU: nbrt, NumPy, randomgen, torch and JAX."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, absent, each
from benchmarks.peers import find

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["APART", "FILLS", "LAYOUTS", "SAMPLERS", "Work", "row"]

_GPU = "H100 SXM"


@dataclass(frozen=True, slots=True)
class Work:
    """A distribution to draw.

    Attributes
    ----------
    name : str
        What; the last word is the dtype of nbrt's result.
    n, quick_n : int
        Elements of a draw, and in a quick run.
    contenders : callable
        Makes the contenders from an array of n elements of the dtype, which they may fill.
    """

    name: str
    n: int
    quick_n: int
    contenders: Callable[[Any], list[Contender]]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of nbrt's result."""
        return np.dtype(self.name.split()[-1])


def row(name: str, make: Callable[[], Callable[[], object]], note: str = "") -> Contender:
    """Make a call and try it; a failing contender is listed with its error."""
    try:
        call = make()
        call()
    except Exception as error:  # noqa: BLE001  # whatever it is
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return absent(name, reason if len(reason) < 110 else f"{reason[:106]} ...")
    return Contender(name, each(call), note=note)


def _nbrt(method: str, *arguments: Any, note: str = "", **named: Any) -> Contender:
    generator = nbrt.Generator(1, device="cpu:0")
    return row("nbrt", lambda: partial(getattr(generator, method), *arguments, **named), note)


def _numpy(method: str, *arguments: Any, note: str = "one thread", **named: Any) -> list[Contender]:
    """Return a row for each of three bit generators."""

    def draw(name: str) -> Callable[[], object]:
        generator = np.random.Generator(getattr(np.random, name)(1))
        return partial(getattr(generator, method), *arguments, **named)

    names = ("Philox", "PCG64", "SFC64")
    return [row(f"NumPy {name}", partial(draw, name), note) for name in names]


def _randomgen(method: str, out: Any) -> Contender:
    name = "randomgen Philox 4x32"
    randomgen, reason = find("randomgen")
    if randomgen is None:
        return absent(name, reason)

    def make() -> Callable[[], object]:
        generator = np.random.Generator(randomgen.Philox(1, number=4, width=32))
        return partial(getattr(generator, method), out.size, out.dtype, out)

    return row(name, make, "one thread")


def _torch(call: Callable[[Any, Any], object], out: Any) -> Contender:
    """Return the row of ``call(torch, tensor)``; the tensor is `out` itself."""
    torch, reason = find("torch")
    if torch is None:
        return absent("torch CPU", reason)
    return row("torch CPU", lambda: partial(call, torch, torch.from_numpy(out)), "mt19937")


def _stateless(method: str, out: Any) -> Contender:
    name = "torch stateless"
    torch, reason = find("torch")
    module, _ = find("torch.func._random", "torch")
    if torch is None or module is None:
        return absent(name, reason if torch is None else "not in this torch")

    def make() -> Callable[[], object]:
        return partial(getattr(module, method), module.key(1), torch.from_numpy(out))

    return row(name, make, "Philox4x32-10")


APART = "JAX threefry2x32"
"""Measured after the others: its threads spin on for a while, which doubles the time of the
next contender on the same core."""


def _jax(method: str, out: Any) -> Contender:
    name = APART
    jax, reason = find("jax")
    if jax is None:
        return absent(name, reason)

    def make() -> Callable[[], object]:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_threefry_partitionable", True)
        draw = jax.jit(partial(getattr(jax.random, method), shape=out.shape, dtype=out.dtype))
        key = jax.random.key(1)
        return lambda: draw(key).block_until_ready()

    return row(name, make, "partitionable, compiled; allocates")


def _fill(out: Any) -> Contender:
    return row("fill", lambda: partial(out.fill, 1), "out.fill(1): bare writes, one thread")


def _standard(method: str, torch_method: str, jax_method: str, out: Any) -> list[Contender]:
    """Return the contenders for standard variates, each under its library's name for them."""
    return [
        _nbrt(method, out.size, out.dtype, out, note="Philox4x32-10"),
        *_numpy(method, out.size, out.dtype, out),
        _randomgen(method, out),
        _torch(lambda _, tensor: getattr(tensor, torch_method)(), out),
        _stateless(torch_method, out),
        _jax(jax_method, out),
        _fill(out),
    ]


def _integers(high: int, out: Any) -> list[Contender]:
    arguments = (0, high, out.size, out.dtype)
    return [
        _nbrt("integers", *arguments, out=out, note=f"[0, {high})"),
        *_numpy("integers", *arguments, note="one thread; allocates"),
        _torch(lambda _, tensor: tensor.random_(0, high), out),
        _fill(out),
    ]


def _exponential(out: Any) -> list[Contender]:
    return [
        _nbrt("standard_exponential", out.size, out.dtype, out=out),
        *_numpy("standard_exponential", out.size, out.dtype, out=out),
        _torch(lambda _, tensor: tensor.exponential_(), out),
    ]


def _bernoulli(out: Any) -> list[Contender]:
    return [
        _nbrt("bernoulli", 0.5, out.size, out.dtype, out),
        _torch(lambda _, tensor: tensor.bernoulli_(0.5), out),
    ]


def _dropout(out: Any) -> list[Contender]:
    out.fill(1)
    return [
        _nbrt("dropout", out, 0.1, note="allocates; returns the mask as well"),
        _torch(lambda torch, x: torch.nn.functional.dropout(x, 0.1, training=True), out),
    ]


def _sampler(method: str, parameters: tuple[float, ...], out: Any) -> list[Contender]:
    """Return the contenders that allocate their results."""
    return [_nbrt(method, *parameters, size=out.size), *_numpy(method, *parameters, size=out.size)]


def _layouts(method: str, out: Any) -> list[Contender]:
    def draw(layout: str, gpu: str | None) -> Callable[[], object]:
        generator = nbrt.Generator(1, device="cpu:0", layout=layout, gpu=gpu)
        return partial(getattr(generator, method), out.size, out.dtype, out)

    return [
        row("element", lambda: draw("element", None), "nbrt's own"),
        row("torch", lambda: draw("torch", _GPU), _GPU),
        row("torch_stateless", lambda: draw("torch_stateless", None), "uniform only"),
    ]


_LONG, _SHORT, _SHORTER = 1 << 24, 1 << 20, 1 << 17

_UNIFORM = partial(_standard, "random", "uniform_", "uniform")
_NORMAL = partial(_standard, "standard_normal", "normal_", "normal")

FILLS = (
    Work("uniform float32", _LONG, _SHORT, _UNIFORM),
    Work("uniform float64", _LONG, _SHORT, _UNIFORM),
    Work("normal float32", _LONG, _SHORT, _NORMAL),
    Work("normal float64", _LONG, _SHORT, _NORMAL),
    Work("integers int32", _LONG, _SHORT, partial(_integers, 1000)),
    Work("integers int64", _LONG, _SHORT, partial(_integers, 1 << 40)),
    Work("exponential float32", _LONG, _SHORT, _exponential),
    Work("bernoulli(0.5) float32", _LONG, _SHORT, _bernoulli),
    Work("dropout(0.1) float32", _LONG, _SHORT, _dropout),
)

SAMPLERS = (
    Work("gamma(2.5) float64", _SHORT, _SHORTER, partial(_sampler, "gamma", (2.5,))),
    Work("beta(0.5, 2) float64", _SHORT, _SHORTER, partial(_sampler, "beta", (0.5, 2.0))),
    Work("Poisson(3) int64", _SHORT, _SHORTER, partial(_sampler, "poisson", (3,))),
    Work("Poisson(100) int64", _SHORT, _SHORTER, partial(_sampler, "poisson", (100,))),
    Work("binomial(100, 0.3) int64", _SHORT, _SHORTER, partial(_sampler, "binomial", (100, 0.3))),
)

LAYOUTS = (
    Work("layouts: uniform float32", _LONG, _SHORT, partial(_layouts, "random")),
    Work("layouts: normal float32", _LONG, _SHORT, partial(_layouts, "standard_normal")),
)
