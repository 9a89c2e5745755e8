"""Control flow by values on the device: the same code runs at once, or is captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import checked_int
from nbrt.errors import ArgumentError, ArgumentTypeError, KernelError
from nbrt.graphs.stream_methods import stream_method
from nbrt.runtime.array import device_of, to_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.graphs import ControlKind
    from nbrt.graphs.capture import StreamCapture
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["cond", "switch", "while_"]

_LIMIT = 1 << 24
_MAX_TURNS = 2**63 - 1


def cond(
    flag: Array, then: Callable[[], object], otherwise: Callable[[], object] | None = None
) -> None:
    """Run one of two functions, by a value on the device.

    Outside of a capture the call waits for the value. Inside, both functions are captured, and a
    replay chooses without the host.

    Parameters
    ----------
    flag : array of one element, bool or integer
        Not 0: run `then`.
    then, otherwise : callable
        Take no arguments; what they return is ignored.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.device("cpu:0"):
    ...     flag, x = nbrt.full(1, True), nbrt.zeros(2)
    ...     with nbrt.graph() as g:
    ...         nbrt.graphs.cond(flag, lambda: nbrt.copy(x, nbrt.full(2, 1.0, "float32")))
    ...     g.replay()
    >>> x
    array([1., 1.], dtype=float32)
    """
    bodies = (then,) if otherwise is None else (then, otherwise)
    stream = _checked(flag, bodies)
    if stream.capture is not None:
        _capture(stream, "if", flag, bodies, 0)
    elif _value(flag, stream):
        then()
    elif otherwise is not None:
        otherwise()


def while_(flag: Array, body: Callable[[], object], limit: int = _LIMIT) -> None:
    """Run a function as long as a value on the device is not 0.

    Parameters
    ----------
    flag : array of one element, bool or integer
        Read before each turn; the body changes it.
    body : callable
        Takes no arguments.
    limit : int
        The largest number of turns.

    Raises
    ------
    KernelError
        If the flag is still not 0 after `limit` turns. A replay fails its stream with it, as a
        kernel does: it is the cause of the `StreamError` of the next synchronisation. A stream that
        runs its work at the call, such as the default stream of a CPU device, raises it there.
    """
    stream = _checked(flag, (body,))
    turns = checked_int("limit", limit)
    if turns < 1:
        raise ArgumentError(f"expected a limit of at least 1 turn, got {turns}")
    if turns > _MAX_TURNS:
        raise ArgumentError(f"expected a limit of at most {_MAX_TURNS} turns, got {turns}")
    if stream.capture is not None:
        _capture(stream, "while", flag, (body,), turns)
        return
    for _ in range(turns):
        if not _value(flag, stream):
            return
        body()
    if _value(flag, stream):
        raise KernelError(
            f"expected a loop of at most {turns} turns, got a flag that is not 0 after them; raise "
            f"limit if the loop is right"
        )


def switch(index: Array, bodies: Sequence[Callable[[], object]]) -> None:
    """Run the function of that number, by a value on the device; none if there is no such one.

    Parameters
    ----------
    index : array of one element, bool or integer
        The number of the function, from 0.
    bodies : sequence of callable
        Take no arguments.
    """
    functions = tuple(bodies)
    stream = _checked(index, functions)
    if stream.capture is not None:
        _capture(stream, "switch", index, functions, 0)
        return
    number = int(_value(index, stream))
    if 0 <= number < len(functions):
        functions[number]()


def _checked(flag: Any, bodies: Sequence[Any]) -> Stream:
    """Return the current stream of the flag's device."""
    for body in bodies:
        if not callable(body):
            raise ArgumentTypeError(f"expected a function without arguments, got {body!r}")
    device = device_of(flag)
    if flag.size != 1 or np.dtype(flag.dtype).kind not in "biu":
        raise ArgumentError(
            f"expected an array of one bool or integer as the flag, got shape {flag.shape} of "
            f"{flag.dtype}"
        )
    stream: Stream = stream_method(device.kind, "current_stream")(device)
    return stream


def _value(flag: Any, stream: Stream) -> Any:
    return to_host(flag, stream=stream).reshape(())[()]


def _capture(
    stream: Stream,
    kind: ControlKind,
    flag: Array,
    bodies: Sequence[Callable[[], object]],
    limit: int,
) -> None:
    capture: StreamCapture = stream.capture  # type: ignore[assignment]  # the only one
    capture.add_control_flow(stream, kind, flag, bodies, limit)
