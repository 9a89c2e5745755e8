"""`record_stream`: memory that another stream uses is not used again before that has passed."""

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
    """Keep an array's memory from being used again before a stream has passed.

    When the array and its views are gone, the memory waits for what the stream has been given by
    then. Launches, copies, fills and draws of nbrt do so themselves for their arrays; this is for
    other libraries' work on the stream.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        From nbrt: its allocation is marked. Other memory (CuPy's own pool, NumPy's) is kept from
        being reused until the stream has done the work that it has now.
    stream : Stream
        A stream that uses it.

    Raises
    ------
    ArgumentTypeError
        If `array` is no array of a device, or `stream` no stream.

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
    hold: object = array if isinstance(array, np.ndarray) else None
    for interface in interfaces:
        if interface.index_of(array) is not None:
            hold = interface.external_owner(array)
            break
    if hold is None:
        raise ArgumentTypeError(
            f"expected an array of a device, got {array!r} of type {type(array).__name__}"
        )
    # As an argument, which a queue keeps until then, and drops where that is allowed.
    stream.call(_do_nothing, hold)


def _do_nothing(kept: object) -> None:
    pass
