"""`fast_launch`: the code of a launch with a number of arguments, on one stream.

A launch through nbrt takes about a microsecond. Code that is generated for the number of arguments
adds a fraction of that: it has no loop, and calls nothing but the launch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numba.cuda.cudadrv.devicearray import DeviceNDArray

from nbrt.compat.numba_cuda.arguments import PLAIN
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COMPILE_HOOK", "fast_launch"]

COMPILE_HOOK = "_compile_for_args"
"""The method that programs replace on a dispatcher to see its compilations."""

_SOURCE = """
def __call__(self, *args):
    __tracebackhide__ = True
    if self.pre_launch_callbacks or HOOK in self._names:
        return self.launch_slowly(args)
    try:
        {unpack}{values}
    except (AttributeError, ValueError):  # the first launch of an array; another number of them
        return self.launch_slowly(args)
    try:
        {order}
        self._submit({names})
    except ArgumentTypeError:
        self.dispatcher.call(args, self)  # raises the error of numba-cuda, if it has one
    except Exception as error:
        self.raise_as_numba(error)
        raise
    {after}
"""

_VALUE = """
        if type({0}) is DeviceNDArray:
            {0} = {0}._nbrt_view
        elif type({0}) not in PLAIN:
            return self.launch_slowly(args)"""

_ORDER_DEFAULT = """if self._busy:
            self._order()"""


@functools.cache
def fast_launch(count: int, *, is_default: bool) -> Callable[..., None]:
    """Return the method ``__call__`` of launches that have been prepared.

    Parameters
    ----------
    count : int
        The number of arguments.
    is_default : bool
        Whether the stream is a legacy default stream, which waits for the others.
    """
    names = [f"a{number}" for number in range(count)]
    listed = ", ".join(names)
    source = _SOURCE.format(
        unpack=f"{listed}{',' * (count == 1)} = args" if names else "() = args",
        values="".join(_VALUE.format(name) for name in names),
        names=listed,
        order=_ORDER_DEFAULT if is_default else "",
        after="" if is_default else "self._order()",
    )
    namespace: dict[str, Any] = {
        "ArgumentTypeError": ArgumentTypeError,
        "HOOK": COMPILE_HOOK,
        "DeviceNDArray": DeviceNDArray,
        "PLAIN": PLAIN,
    }
    exec(compile(source, f"<numba.cuda launch of {count} arguments>", "exec"), namespace)
    function: Callable[..., None] = namespace["__call__"]
    return function
