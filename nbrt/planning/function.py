"""`plan`: the memory plan of a function."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.planning.fake_mode import fake

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.fake.reads import Reads
    from nbrt.backends.interface import DeviceProperties
    from nbrt.planning.plan import MemoryPlan
    from nbrt.typing import DeviceLike

__all__ = ["check_runs", "plan", "runs_nothing"]


def plan(
    function: Callable[..., object],
    /,
    *args: Any,
    device: DeviceLike = "cuda",
    gpu: str | None = None,
    properties: DeviceProperties | None = None,
    devices: int | None = None,
    reads: Reads = "error",
    **kwargs: Any,
) -> MemoryPlan:
    """Run a function on fake devices, and return which memory, launches and copies it needs.

    Parameters
    ----------
    function : callable
        The program. It runs once; its result is dropped.
    *args, **kwargs
        Its arguments. Parameters of the names below cannot be passed by name.
    device, gpu, properties, devices, reads
        The devices, as for `nbrt.fake`.

    Returns
    -------
    plan : MemoryPlan
        The plan; its `largest` runs the function again with other arguments.

    Raises
    ------
    ArgumentTypeError
        If `function` cannot be called, or is a coroutine or generator function: a call of it would
        run nothing.

    See Also
    --------
    nbrt.fake : The same for a block.

    Examples
    --------
    >>> import nbrt
    >>> def step(batch):
    ...     return nbrt.zeros((batch, 1024), "float32")
    >>> planned = nbrt.plan(step, 1 << 20, gpu="L4")
    >>> planned.peak
    4294967296
    >>> planned.fits(), planned.largest("batch", 1, 1 << 24, gpu="16GiB")
    (True, 4194304)
    """
    check_runs(function)
    signature = _signature(function)

    def run(changes: dict[str, Any]) -> MemoryPlan:
        given, named = _changed(function, signature, args, kwargs, changes)
        mode = fake(device, gpu=gpu, properties=properties, devices=devices, reads=reads)
        with mode as made:
            result = function(*given, **named)
            if inspect.iscoroutine(result):
                result.close()
                raise runs_nothing(function, "a coroutine")
            del result  # the plan shows what the function leaves in use
        return made

    found = run({})
    found._repeat = run
    return found


def check_runs(function: Any) -> None:
    """Raise ArgumentTypeError if a call of a function would not run it."""
    if not callable(function):
        raise ArgumentTypeError(
            f"expected a function to run, got {function!r} of type {type(function).__name__}"
        )
    while isinstance(function, functools.partial):
        function = function.func
    for each in (function, type(function).__call__):
        if inspect.isgeneratorfunction(each):
            raise runs_nothing(function, "a generator")
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise runs_nothing(function, "a coroutine or asynchronous generator")


def runs_nothing(function: object, what: str) -> ArgumentTypeError:
    """Return the error for a function of which a call returns `what` and runs nothing."""
    label = getattr(function, "__qualname__", repr(function))
    return ArgumentTypeError(
        f"expected a function that runs when it is called, got {label}, which returns {what}; pass "
        f"a function that runs it, as by asyncio.run or list"
    )


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of a C function
        return None


def _changed(
    function: Callable[..., object],
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changes: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, of which some have other values."""
    if not changes:
        return args, kwargs
    every = {} if signature is None else signature.parameters
    keywords = [key for key, each in every.items() if each.kind is each.VAR_KEYWORD]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [key for key, each in every.items() if each.kind not in several]
    for name in changes:
        if not keywords and name not in parameters:
            label = getattr(function, "__qualname__", repr(function))
            known = ", ".join(parameters) or "none with a name"
            raise ArgumentError(f"expected a parameter of {label} ({known}), got {name!r}")
    if signature is None:
        return args, {**kwargs, **changes}
    bound = signature.bind_partial(*args, **kwargs)
    for name, value in changes.items():
        if name in parameters:
            bound.arguments[name] = value
        else:
            bound.arguments.setdefault(keywords[0], {})[name] = value
    return bound.args, bound.kwargs
