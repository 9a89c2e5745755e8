"""`replay`: repeats a recorded draw, on any device or in pieces."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import as_dtype
from nbrt.backends.draw import Draw
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.index_sets import Region, RunTable
from nbrt.random.memory_order import as_kernel_view
from nbrt.runtime.array import asarray, to_host
from nbrt.runtime.commands import Command
from nbrt.runtime.creation import empty
from nbrt.runtime.device import resolve_device
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt.random.audit.recording import DrawRecord
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DeviceLike, HostArray

__all__ = ["digest", "replay", "sha256_of"]


def replay(record: DrawRecord, device: DeviceLike = None, pieces: int = 1) -> Array:
    """Repeat a recorded draw, without any generator.

    Parameters
    ----------
    record : DrawRecord
        The draw, with numbers as parameters and a layout of nbrt.
    device : Device, str, int or None
        The device; by default that of the record.
    pieces : int
        Number of shards to draw it in.

    Returns
    -------
    array
        Of the recorded shape and dtype, with the elements in the order of the draw.

    Raises
    ------
    NotSupportedError
        If `DrawRecord.replayable` is False.
    """
    if not record.replayable:
        raise NotSupportedError(
            f"expected a draw with numbers as parameters and a layout of nbrt, got {record}; the "
            f"file does not contain arrays and custom layouts"
        )
    if isinstance(pieces, bool) or not isinstance(pieces, int):
        raise ArgumentTypeError(f"expected a number of pieces, got {pieces!r}")
    if pieces < 1:
        raise ArgumentError(f"expected at least 1 piece, got {pieces}")
    chosen = resolve_device(record.device if device is None else device)
    stream = current_stream(chosen)
    result = empty(record.shape, as_dtype(record.dtype), stream=stream)
    flat = as_kernel_view(result)
    start = 0
    for region in _regions(record, pieces, stream):
        size = result.size if region is None else math.prod(region.shape)
        shape = region.shape if isinstance(region, Region) else record.shape
        draw = Draw(
            record.distribution,
            record.dtype,
            record.n,
            record.parameters,
            record.layout,
            record.constants,
            region=region,
            seed=record.seed,
            offset=record.offset,
            shape=shape,
        )
        arguments = (flat[start : start + size], draw)
        stream.submit(Command("draw", stream.interface.draw, arguments, record.distribution))
        start += size
    return result


def digest(array: Any) -> str:
    """Return the sha256 of an array's bits, in C order, as in `DrawRecord.digest`.

    Parameters
    ----------
    array : array
        On any device, for whose current stream it waits.

    Examples
    --------
    >>> import nbrt
    >>> digest(nbrt.zeros(2))[:12]
    'af5570f5a181'
    """
    return sha256_of(to_host(array, copy=None))


def sha256_of(array: HostArray) -> str:
    """Return the sha256 of the bits of an array in host memory, in C order."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(raw.data).hexdigest()


def _regions(record: DrawRecord, pieces: int, stream: Stream) -> list[Region | RunTable | None]:
    """Split the first dimension of a recorded region into pieces that are not empty."""
    if isinstance(record.region, RunTable):
        names = ("starts", "begins")
        tables = {name: np.array(getattr(record.region, name), np.int64) for name in names}
        arrays = {name: asarray(table, stream=stream, copy=None) for name, table in tables.items()}
        return [replace(record.region, **arrays)]
    if pieces == 1:
        return [record.region]
    size = math.prod(record.shape)
    whole = Region(0, (size,), (1,)) if record.region is None else record.region
    if not whole.shape:
        return [whole]
    rows = whole.shape[0]
    cuts = [rows * piece // pieces for piece in range(pieces + 1)]
    return [
        Region(
            whole.start + first * whole.strides[0], (last - first, *whole.shape[1:]), whole.strides
        )
        for first, last in itertools.pairwise(cuts)
        if last > first
    ]
