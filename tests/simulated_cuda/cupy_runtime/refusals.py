"""Modules of CuPy with kernels in machine code and their own copy of NVIDIA's runtime.

Without a GPU they would fail silently or give wrong values, so their functions raise instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["REFUSALS", "NotSimulatedError"]

_FUNCTIONS = {
    "cupy.cuda.cub": (
        "cub_histogram cub_reduction cub_scan device_histogram device_reduce device_scan "
        "device_segmented_reduce"
    ),
    "cupy.cuda.jitify": "_init_module jitify",
    "cupy.random._generator_api": "FeistelBijection Generator.__init__ init_curand random_raw",
}


class NotSimulatedError(RuntimeError):
    """CuPy has this function in machine code only, which the simulated CUDA driver cannot run."""


def _refused(name: str) -> Callable[..., NoReturn]:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotSimulatedError(
            f"{name} is machine code for a GPU, which the simulated CUDA driver cannot run"
        )

    function.__name__ = name.rpartition(".")[2]
    return function


def _refuse(module: ModuleType) -> None:
    """Replace the functions of a module, and the C functions of the same names."""
    for path in _FUNCTIONS[module.__name__].split():
        owner_name, _, name = path.rpartition(".")
        owner = getattr(module, owner_name) if owner_name else module
        if not hasattr(owner, name):
            raise ImportError(f"{module.__name__}: expected a function {path}, got none")
        setattr(owner, name, _refused(f"{module.__name__}.{path}"))
        getattr(module, "__pyx_capi__", {}).pop(name, None)


REFUSALS = dict.fromkeys(_FUNCTIONS, _refuse)
"""The change of each module, for the import hook."""
