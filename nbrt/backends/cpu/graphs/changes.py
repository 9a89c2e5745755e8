"""`Changes`, the difference of one replay from the program."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.core import errors, types
from numba.np.numpy_support import as_dtype

from nbrt.backends.cpu.graphs.arguments import pack, with_defaults
from nbrt.backends.cpu.graphs.instructions import fill_block
from nbrt.backends.cpu.simt.runtime.arguments import numba_type
from nbrt.errors import ArgumentTypeError, GraphError

if TYPE_CHECKING:
    from nbrt.backends.cpu.graphs.instructions import Assembly
    from nbrt.backends.graphs import ReplayValues

__all__ = ["Changes", "changes_of"]


class Changes(NamedTuple):
    """Changes of the program for one replay.

    Attributes
    ----------
    disabled : set of int
        The numbers of the placed nodes that do not run.
    words : array of int
        Words of the memory.
    values : array of uint64
        Their values in this replay.
    scalars : dict of int to dict
        By instruction: arguments of Python functions, by their number.
    kept : list
        Objects whose memory the values point to.
    """

    disabled: set[int]
    words: Any
    values: Any
    scalars: dict[int, dict[int, Any]]
    kept: list[object]


_NO_WORDS = np.zeros(0, np.intp)
_NO_VALUES = np.zeros(0, np.uint64)


_NONE = Changes(set(), _NO_WORDS, _NO_VALUES, {}, [])


def changes_of(assembly: Assembly, values: ReplayValues) -> Changes:
    """Return the changes of one replay.

    Raises
    ------
    ArgumentTypeError
        If a scalar does not have the type of the captured one.
    GraphError
        If a scalar is for an argument that does not exist.
    """
    disabled: set[int] = set()
    for each in assembly.nodes:  # many times faster than `map` with an `attrgetter`
        if not each.is_enabled:
            disabled = {number for number, node in enumerate(assembly.nodes) if not node.is_enabled}
            break
    for number, parents in assembly.nested:
        if not all(parent.is_enabled for parent in parents):
            disabled.add(number)
    if not values.addresses and not values.scalars:
        return Changes(disabled, _NO_WORDS, _NO_VALUES, {}, []) if disabled else _NONE
    changed: dict[int, int] = {}
    for buffer, address in values.addresses.items():
        for at, offset in assembly.relocations.get(buffer, ()):
            changed[at] = address + offset
    scalars: dict[int, dict[int, Any]] = {}
    for (node, work, position), value in values.scalars.items():
        instruction = assembly.works.get((node, work))
        if instruction is None:
            raise GraphError(
                f"expected a work of the graph, got number {work} of node {node}, which does not "
                f"exist; use the numbers of this graph's nodes"
            )
        scalars.setdefault(instruction, {})[position] = value
    kept: list[object] = []
    for instruction, replaced in scalars.items():
        _repack(assembly, instruction, replaced, changed, kept)
    words = np.fromiter(changed.keys(), np.intp, len(changed))
    numbers = np.fromiter(changed.values(), np.uint64, len(changed))
    return Changes(disabled, words, numbers, scalars, kept)


def _repack(
    assembly: Assembly,
    instruction: int,
    replaced: dict[int, Any],
    changed: dict[int, int],
    kept: list[object],
) -> None:
    """Add the words of a kernel's arguments or of a fill, and convert the scalars."""
    packed = assembly.packed.get(instruction)
    if packed is None:
        return  # a Python function takes the values as they are
    args = assembly.calls[instruction].args
    if isinstance(packed.types, np.dtype):
        nbytes = int(assembly.instructions["b"][instruction])
        block = fill_block(replaced[1], packed.types, nbytes)
        if block is None:
            raise ArgumentTypeError(f"expected one value to fill with, got {replaced[1]!r}")
        data, skipped = block, frozenset[int]()
    else:
        for position, value in replaced.items():
            replaced[position] = _converted(args, position, value)
        merged = tuple(replaced.get(number, value) for number, value in enumerate(args))
        fresh = pack(packed.types, with_defaults(packed.types, merged))
        data, skipped = fresh.data, frozenset(it.at for it in fresh.relocations)
        kept += fresh.kept
    data = data.ljust(-(-len(data) // 8) * 8, b"\0")
    for offset in range(0, len(data), 8):
        if offset not in skipped:
            number = int.from_bytes(data[offset : offset + 8], "little")
            changed[packed.begin + offset // 8] = number


def _converted(args: tuple[Any, ...], position: int, value: Any) -> Any:
    """Return a value with the type of the captured argument; raise if that changes it."""
    if not 0 <= position < len(args):
        raise GraphError(
            f"expected the number of an argument below {len(args)}, got {position}; use the "
            f"numbers of the captured arguments"
        )
    wanted = numba_type(args[position])
    try:
        given = numba_type(value)
    except (errors.NumbaError, ValueError, TypeError, NotImplementedError):
        given = None
    if given == wanted:
        return value
    if isinstance(wanted, types.Number) and isinstance(given, types.Number | types.Boolean):
        dtype = as_dtype(wanted)
        if np.can_cast(as_dtype(given), dtype, "same_kind") or dtype.kind in "iu":
            with contextlib.suppress(OverflowError, TypeError, ValueError):
                converted = dtype.type(value)
                if dtype.kind in "fc" or converted == value:
                    return converted
    raise ArgumentTypeError(
        f"expected a value of type {wanted} for argument {position}, as captured, got {value!r}; "
        f"convert it, or capture the graph again"
    )
