"""`graph_equals_eager`: compares the replays of a captured function with its eager calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.errors import ArgumentError, NbrtError
from nbrt.graphs.capturing import graph
from nbrt.observe.races.footprint import footprint_of
from nbrt.random.defaults import default_generator
from nbrt.runtime.array import copy, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.device import current_device
from nbrt.runtime.memory.functions import memory_stats
from nbrt.runtime.synchronization import synchronize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nbrt._internal.device import Device
    from nbrt.graphs.graph import Graph
    from nbrt.random.generator import Generator
    from nbrt.typing import HostArray

__all__ = ["GraphDifferenceError", "graph_equals_eager"]


class GraphDifferenceError(NbrtError, AssertionError):
    """A captured function changed something at its capture, or a replay differs from a call."""


class _State(NamedTuple):
    """Values that a call can change: arrays by name, and the states of generators."""

    arrays: dict[str, HostArray]
    generators: list[bytes]


def graph_equals_eager(
    function: Callable[..., Any],
    *args: Any,
    others: Sequence[Any] | None = None,
    generators: Iterable[Generator] = (),
    replays: int = 2,
    deterministic: bool = False,
) -> None:
    """Call a function several times, replay its capture as often, and compare all bits.

    The arguments and the generators start with the same values both times. After each call and
    each replay all array arguments, all arrays that the function returns, and the states of the
    generators must be equal, bit by bit. The capture must change nothing, a replay must allocate
    nothing, and the end of the graph must free its memory. Afterwards the arguments have the values
    of the last call, and the generators its states.

    Parameters
    ----------
    function : callable
        Works on the current stream and returns an array, a tuple, list or dict of them, or None.
    *args
        Its arguments. Those that are arrays of the device are replaced in a further replay.
    others : sequence, optional
        The arguments of that replay: arrays of the same shapes and dtypes, and equal other values.
        Without it, copies of the arrays that are C-contiguous and share no memory.
    generators : iterable of Generator
        The generators that the function draws from, besides the default generator of the current
        device.
    replays : int
        The number of calls and of replays before the one with other arguments.
    deterministic : bool
        As of `nbrt.graph`.

    Raises
    ------
    GraphDifferenceError
        At the first difference: names the replay, the array, and its first element that differs.
    CaptureError
        If the function cannot be captured.

    Examples
    --------
    >>> import nbrt
    >>> def step(x):
    ...     nbrt.default_generator().random(out=x, dtype="float32")
    >>> with nbrt.device("cpu:0"):
    ...     graph_equals_eager(step, nbrt.zeros(8))
    """
    if replays < 1:
        raise ArgumentError(f"expected at least 1 replay, got {replays}")
    device = current_device()
    watched = [default_generator(device), *generators]
    further = tuple(_copies(args) if others is None else others)
    if len(further) != len(args):
        raise ArgumentError(f"expected {len(args)} other arguments, got {len(further)}")
    comparison = _Comparison(function, args, further, watched)
    initial = comparison.state()
    eager = [comparison.call(args) for _ in range(replays)]
    eager.append(comparison.call(further))
    comparison.restore(initial)
    before = _allocated(device)
    made = comparison.capture(deterministic=deterministic)
    try:
        comparison.require("the capture", comparison.state(), initial)
        for number in range(replays):
            found = comparison.replay(made, args)
            comparison.require(f"replay {number + 1}", found, eager[number])
        found = comparison.replay(made, further)
        comparison.require("the replay with other arguments", found, eager[-1])
    finally:
        made.reset()
        made.result = None
    synchronize(device)
    _require_memory("the end of the graph", before, _allocated(device))


class _Comparison:
    """A function with two sets of arguments, and what its calls change."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        others: tuple[Any, ...],
        generators: list[Generator],
    ) -> None:
        self._function = function
        self._args = args
        self._others = others
        self._generators = generators
        self._device = current_device()

    def state(self, result: Any = None) -> _State:
        """Return copies of all values, after all work is done."""
        synchronize(self._device)
        arrays = {f"argument {i}": each for i, each in enumerate(self._args) if _is_array(each)}
        for index, each in enumerate(self._others):
            if _is_array(each) and each is not self._args[index]:
                arrays[f"other argument {index}"] = each
        arrays.update(_arrays_in("the result", result))
        states = [each.get_state().tobytes() for each in self._generators]
        return _State({name: to_host(each).copy() for name, each in arrays.items()}, states)

    def restore(self, state: _State) -> None:
        """Write the values of a state into arguments and generators."""
        for index, (arg, other) in enumerate(zip(self._args, self._others, strict=True)):
            for name, array in (f"argument {index}", arg), (f"other argument {index}", other):
                if name in state.arrays:
                    copy(array, state.arrays[name])
        for generator, before in zip(self._generators, state.generators, strict=True):
            generator.set_state(np.frombuffer(before, np.uint8).copy())
        synchronize(self._device)

    def call(self, args: tuple[Any, ...]) -> _State:
        """Call the function, and return the values afterwards."""
        return self.state(self._function(*args))

    def capture(self, *, deterministic: bool) -> Graph:
        """Capture the function with the first arguments."""
        named = {f"argument{index}": arg for index, arg in enumerate(self._args)}
        made = graph(deterministic=deterministic).capture(
            lambda: self._function(*self._args), named
        )
        synchronize(self._device)
        return made

    def replay(self, made: Graph, args: tuple[Any, ...]) -> _State:
        """Replay with some arguments, and return the values afterwards."""
        before = _allocated(self._device)
        pairs = zip(self._args, args, strict=True)
        named = {f"argument{index}": other for index, (arg, other) in enumerate(pairs)
                 if arg is not other}  # fmt: skip
        made.replay(**{name: each for name, each in named.items() if name in made.parameters})
        synchronize(self._device)
        _require_memory("a replay", before, _allocated(self._device))
        return self.state(made.result)

    def require(self, moment: str, found: _State, expected: _State) -> None:
        """Raise GraphDifferenceError at the first difference."""
        if found.arrays.keys() != expected.arrays.keys():
            raise GraphDifferenceError(
                f"expected {moment} to return {list(expected.arrays)}, as the call, got "
                f"{list(found.arrays)}"
            )
        for name, array in found.arrays.items():
            text = _difference(array, expected.arrays[name])
            if text:
                raise GraphDifferenceError(
                    f"expected {name} after {moment} as in eager calls, got {text}"
                )
        for index, (got, wanted) in enumerate(
            zip(found.generators, expected.generators, strict=True)
        ):
            if got != wanted:
                name = f"generator {index - 1}" if index else "the default generator"
                raise GraphDifferenceError(
                    f"expected {name} after {moment} in the state of eager calls, "
                    f"{_seed_and_offset(wanted)}, got {_seed_and_offset(got)}"
                )


def _difference(found: HostArray, expected: HostArray) -> str:
    """Return the first element that differs in bits; empty if none does."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"{found.shape} {found.dtype} instead of {expected.shape} {expected.dtype}"
    bits = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (found, expected)]
    places = np.flatnonzero(bits[0] != bits[1])
    if not len(places):
        return ""
    count = len({int(place) // found.itemsize for place in places})
    element = np.unravel_index(int(places[0]) // found.itemsize, found.shape)
    index = tuple(map(int, element))
    return (
        f"{found[index]!r} instead of {expected[index]!r} at {index}, and {count - 1} further "
        f"differences in {found.size} elements"
    )


def _seed_and_offset(state: bytes) -> str:
    seed, offset = np.frombuffer(state, np.uint64)[:2].tolist()
    return f"seed {seed} and offset {offset}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "strides") and not np.isscalar(value)


def _arrays_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if _is_array(value):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _arrays_in(f"{name}[{index}]", each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _arrays_in(f"{name}[{key!r}]", each)


def _copies(args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with copies of the arrays that another array can replace."""
    arrays = [each for each in args if _is_array(each)]
    copies = []
    for arg in args:
        is_apart = _is_array(arg) and not any(
            other is not arg and _share(arg, other) for other in arrays
        )
        if is_apart and sum(other is arg for other in arrays) == 1 and _is_contiguous(arg):
            made = empty(arg.shape, arg.dtype)
            copy(made, arg)
            copies.append(made)
        else:
            copies.append(arg)
    return copies


def _is_contiguous(array: Any) -> bool:
    return bool(array.flags.c_contiguous)


def _share(first: Any, second: Any) -> bool:
    one, two = footprint_of(first), footprint_of(second)
    return one is not None and two is not None and one.overlaps(two)


def _allocated(device: Device) -> tuple[int, int]:
    """Return the bytes and the blocks in use."""
    stats = memory_stats(device)
    return (
        stats.get("allocated_bytes.all.current", 0),
        stats.get("allocated.all.current", 0),
    )


def _require_memory(moment: str, before: tuple[int, int], after: tuple[int, int]) -> None:
    if before != after:
        raise GraphDifferenceError(
            f"expected {moment} to leave {before[0]} bytes in {before[1]} allocations, got "
            f"{after[0]} bytes in {after[1]}"
        )
