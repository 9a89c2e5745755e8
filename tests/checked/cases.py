"""How the suites of kernels are written down, and launched in checked mode."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import KernelCheckError

if TYPE_CHECKING:
    from collections.abc import Callable


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@dataclass(frozen=True)
class Case:
    """A kernel and its launch; of a kernel with a fault also what is to be found."""

    kernel: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    grid: Any
    block: Any
    shared: int
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    variable: str | None = None
    also: frozenset[str] = frozenset()
    expected: Callable[..., Any] | None = None

    def run(self, seed: int | None = None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Launch; return the reports and the arguments."""
        kernel = nbrt.kernel(self.kernel).checked(seed=seed, **self.options)
        args = self.args()
        try:
            with nbrt.device("cpu:0"):
                kernel[self.grid, self.block, None, self.shared](*args)
        except KernelCheckError as error:
            return error.reports, args
        return (), args


class Suite:
    """Collects cases."""

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def bug(self, kind: str, variable: str | None, *args: Any, **launch: Any) -> Any:
        """Register a kernel whose fault is in the line that ends in ``# bug``."""
        also = frozenset(launch.pop("also", ()))
        return self._add(args, launch, kind=kind, variable=variable, also=also)

    def legal(self, *args: Any, expected: Any = None, **launch: Any) -> Any:
        """Register a kernel without fault; `expected` makes its first argument's new value."""
        return self._add(args, launch, expected=expected)

    def _add(self, args: tuple[Any, ...], launch: dict[str, Any], **what: Any) -> Any:
        grid, block = launch.pop("grid", 1), launch.pop("block", 32)
        shared = launch.pop("shared", 0)

        def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
            # Made anew for every launch: a template given once must not be written into.
            def fresh() -> tuple[Any, ...]:
                return tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args)

            case = Case(kernel, fresh, grid, block, shared, launch, **what)
            self.cases.append(pytest.param(case, id=kernel.__name__))
            return kernel

        return register


def marked_lines(function: Callable[..., Any], mark: str = "# bug") -> set[int]:
    """Return the numbers of the lines of a kernel, or of its callees, that carry a mark."""
    module = inspect.getmodule(function)
    assert module is not None
    helpers = [getattr(value, "py_func", None) for value in vars(module).values()]
    used = set(function.__code__.co_names)
    functions = [function, *(h for h in helpers if h is not None and h.__name__ in used)]
    found = set()
    for member in functions:
        lines, first = inspect.getsourcelines(member)
        found |= {first + at for at, line in enumerate(lines) if line.rstrip().endswith(mark)}
    return found
