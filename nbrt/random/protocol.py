"""`__nbrt_random__`: the protocol by which other arrays override functions of `nbrt.random`."""

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
    """Dispatch a function on its arguments, like NumPy's ``__array_function__``.

    If the type of an argument has a method ``__nbrt_random__(self, function, args, kwargs)``, the
    call returns the result of that method. `function` is the public function of `nbrt.random`, so
    the method may call it with plain arrays; `args` and `kwargs` are the arguments of the call. The
    method returns `NotImplemented` for a function that it does not support; then the method of the
    next argument is called, from left to right.

    Parameters
    ----------
    function : callable
        The implementation for arguments without the method.

    Returns
    -------
    callable
        Of the same signature. It raises `ArgumentTypeError` if all methods decline.

    Examples
    --------
    >>> import nbrt
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
                return _dispatch(function, call, args, kwargs)
        for value in kwargs.values():
            if type(value) not in _PLAIN and hasattr(value, _METHOD):
                return _dispatch(function, call, args, kwargs)
        return function(*args, **kwargs)

    return call


def _dispatch(
    plain: Callable[P, R], function: Callable[P, R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    """Return the result of the first argument that supports the function."""
    declined = []
    for value in (*args, *kwargs.values()):
        # The caller looks at instances, which is faster, but a proxy has any attribute.
        method = getattr(type(value), _METHOD, None)
        if method is None:
            continue
        result: R = method(value, function, args, kwargs)
        if result is not NotImplemented:
            return result
        declined.append(type(value).__name__)
    if not declined:
        return plain(*args, **kwargs)
    name = getattr(function, "__name__", function)
    raise ArgumentTypeError(
        f"expected arguments that nbrt.random.{name} supports, got {', '.join(declined)}, whose "
        f"__nbrt_random__ declined; pass arrays of a device"
    )
