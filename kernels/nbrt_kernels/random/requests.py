"""From a draw as a user names it to the fill kernel and its arguments, for every backend."""

from __future__ import annotations

from typing import Any

from nbrt_kernels.random.fill import DRAWS, DrawSpec
from nbrt_kernels.random.parameters import (
    integer_parameters,
    normal_parameters,
    uniform_parameters,
)

__all__ = ["draw_request"]


def draw_request(
    distribution: str, dtype: str, parameters: tuple[Any, ...]
) -> tuple[DrawSpec, tuple[Any, ...]]:
    """Return the fill kernel of a draw and the arguments that follow ``first_block``.

    Parameters
    ----------
    distribution : str
        "uniform", "normal", "integers" or "bits".
    dtype : str
        Name of the output's dtype.
    parameters : tuple
        ``(low, high)``, ``(loc, scale)``, ``(low, high)`` or ``()``, as Python numbers.

    Returns
    -------
    spec : DrawSpec
        How to launch it.
    arguments : tuple
        The parameters as the kernel takes them.

    Raises
    ------
    TypeError
        If there is no such draw for the dtype.
    ValueError
        If a parameter is out of range.
    """
    converted: tuple[Any, ...] = ()
    if parameters:
        first, second = parameters
        if distribution == "uniform":
            converted = uniform_parameters(first, second, dtype)
        elif distribution == "normal":
            converted = normal_parameters(first, second, dtype)
        elif distribution == "integers":
            distribution, converted = integer_parameters(first, second, dtype)
    spec = DRAWS.get((distribution, dtype))
    if spec is None:
        known = ", ".join(f"{name} of {kind}" for name, kind in DRAWS)
        message = f"expected one of the draws {known}, got {distribution} of {dtype}"
        raise TypeError(message)
    return spec, converted
