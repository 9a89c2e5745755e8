"""`record_stream`: reuse a block only after all streams that use it have passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbrt.backends import registry
from nbrt.errors import ArgumentTypeError
from nbrt.runtime.memory.allocation import Allocation
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    from nbrt.typing import Array

__all__ = ["record_stream"]


def record_stream(array: Array, stream: Stream) -> None:
    """Keep an array's memory from being reused before a stream has passed.

    When the array and its views are gone, the memory waits for the work that the stream has by
    then. Launches, copies, fills and draws of nbrt record their arrays themselves; this function is
    for other libraries' work on the stream.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        From nbrt: its allocation is marked. Other memory (CuPy's own pool, NumPy's) is kept alive
        until the stream has done the work that it has now.
    stream : Stream
        The stream that uses it.

    Raises
    ------
    ArgumentTypeError
        If `array` is not an array of a device, or `stream` not a stream.

    Examples
    --------
    >>> import nbrt
    >>> side = nbrt.Stream("cpu:0")
    >>> x = nbrt.zeros(4, device="cpu:0")
    >>> nbrt.memory.record_stream(x, side)
    """
    if not isinstance(stream, Stream):
        raise ArgumentTypeError(f"expected an nbrt.Stream, got {stream!r}")
    stream.interface.lazy.ensure()
    interfaces = registry.ready_interfaces()
    # Arrays of one kind may look like plain host memory to another.
    for interface in interfaces:
        owner = interface.owner_of(array)
        if isinstance(owner, Allocation):
            owner.record_stream(stream)
            return
    # NumPy's memory needs no cpu device that is in use.
    keep: object = array if isinstance(array, np.ndarray) else None
    for interface in interfaces:
        if interface.index_of(array) is not None:
            keep = interface.external_owner(array)
            break
    if keep is None:
        raise ArgumentTypeError(
            f"expected an array of a device, got {array!r} of type {type(array).__name__}"
        )
    # As an argument, which a queue keeps until then, and drops where that is allowed.
    stream.call(_do_nothing, keep)


def _do_nothing(kept: object) -> None:
    pass
