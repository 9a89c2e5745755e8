"""The generators of Python and NumPy, whose hidden state no kernel may use."""

from __future__ import annotations

from typing import Any

__all__ = ["refusal_of_random"]

_MODULES = ("random", "numpy.random")
_DRAWS = {
    **dict.fromkeys(("gauss", "normal", "normalvariate", "randn", "standard_normal"), "normal4"),
    **dict.fromkeys(("integers", "randint", "random_integers", "randrange"), "randint4"),
}


def refusal_of_random(value: Any) -> str | None:
    """Return why a kernel may not use a value, if it belongs to a generator with hidden state.

    Parameters
    ----------
    value : object
        What a name in a kernel stands for.

    Returns
    -------
    str or None
        The reason and the next step; None for every other value.
    """
    owner = value if _is_generator(value) else getattr(value, "__self__", None)
    if not _is_generator(owner) and not _is_random(getattr(value, "__module__", None)):
        return None
    name = str(getattr(value, "__name__", type(value).__name__))
    function = _DRAWS.get(name, "uniform4")
    module = type(owner).__module__ if _is_generator(owner) else value.__module__
    space = "random" if module == "random" else "numpy.random"
    return (
        f"expected a counter-based generator, got {space}.{name}: its hidden state makes other "
        f"numbers in each launch, and CUDA does not have it; use "
        f"nbrt_kernels.random, such as {function}(seed, offset, index), or draw an array with "
        f"nbrt.Generator and pass it to the kernel"
    )


def _is_generator(value: Any) -> bool:
    return _is_random(type(value).__module__)


def _is_random(module: Any) -> bool:
    return isinstance(module, str) and (
        module in _MODULES or module.startswith(tuple(f"{name}." for name in _MODULES))
    )
