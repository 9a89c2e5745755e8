"""The protocol by which arrays of others take part in the functions of `nbrt.random`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np

from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["dispatchable"]

P = ParamSpec("P")
R = TypeVar("R")
_METHOD = "__nbrt_random__"
_PLAIN = frozenset([np.ndarray, bool, float, int, list, str, tuple, type, type(None)])


def dispatchable(function: Callable[P, R]) -> Callable[P, R]:
    """Let arguments say themselves what a function does with them.

    As NumPy's ``__array_function__``: where the type of an argument, positional or by name, has a
    method ``__nbrt_random__(self, function, args, kwargs)``, the call is handed over to it, and
    what it returns is returned. `function` is the public function of `nbrt.random`, so it may be
    called again with arguments that are plain arrays; `args` (a tuple) and `kwargs` (a dict) are
    the arguments as they came. A method that does not know the function returns `NotImplemented`;
    then the next argument of that kind is asked, from left to right.

    Parameters
    ----------
    function : callable
        What to do if no argument has the method.

    Returns
    -------
    callable
        Of the same signature. Raises `ArgumentTypeError` if all that were asked declined.

    Examples
    --------
    >>> import numpy as np
    >>> class Named:
    ...     def __init__(self, array):
    ...         self.array = array
    ...
    ...     def __nbrt_random__(self, function, args, kwargs):
    ...         return function(*(one.array if one is self else one for one in args), **kwargs)
    >>> nbrt.random.rand_like(Named(np.zeros((2, 3)))).shape
    (2, 3)
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for value in args:
            if type(value) not in _PLAIN and hasattr(value, _METHOD):
                return _handed_over(function, call, args, kwargs)
        for value in kwargs.values():
            if type(value) not in _PLAIN and hasattr(value, _METHOD):
                return _handed_over(function, call, args, kwargs)
        return function(*args, **kwargs)

    return call


def _handed_over(
    plain: Callable[P, R], function: Callable[P, R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    """Return what the first argument that knows the function returns."""
    asked = []
    for value in (*args, *kwargs.values()):
        # Instances were asked first, since types take long to say no; a proxy says yes to anything.
        method = getattr(type(value), _METHOD, None)
        if method is None:
            continue
        result: R = method(value, function, args, kwargs)
        if result is not NotImplemented:
            return result
        asked.append(type(value).__name__)
    if not asked:
        return plain(*args, **kwargs)
    name = getattr(function, "__name__", function)
    raise ArgumentTypeError(
        f"expected arguments that nbrt.random.{name} can work with, got {', '.join(asked)}, whose "
        f"__nbrt_random__ declined; pass arrays of a device"
    )
