"""Launches of draws in the order of torch's CUDA kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels.random.launches import Box, Fill, box_arguments, is_listed
from nbrt_kernels.random.torch.fills import (
    RECIPROCAL_BITS,
    TILE,
    chunked_locate,
    make_chunked,
    make_located,
    make_strided,
    plain_locate,
    shuffle_runs,
    strided_locate,
)
from nbrt_kernels.random.torch.functions import HARDWARE, PORTABLE
from nbrt_kernels.random.torch.parameters import ITEMSIZE
from nbrt_kernels.random.torch.specs import DrawSpec, stateless_spec, torch_spec

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["pieces", "stateless_launches", "torch_launches"]

_INT32_MAX = 2**31 - 1
#: Grid threads of a kernel whose grid grows with its array: one thread per chunk.
_UNLIMITED = 2**62
_MAX_TILES = 2**23


def torch_launches(
    distribution: str,
    dtype: str,
    n: int,
    parameters: tuple[Any, ...],
    constants: tuple[int, ...],
    count: int | None = None,
    region: Box | None = None,
    *,
    hardware: bool = False,
) -> list[Fill]:
    """Return the launches that fill an array with a draw, or a part of one, as torch does.

    Parameters
    ----------
    distribution : str
        "uniform", "normal", "log_normal", "exponential", "geometric", "cauchy", "bernoulli",
        "integers", "random" (integers of the range of the dtype), "dropout" or "shuffle_runs".
    dtype : str
        Name of the output's dtype; arrays of bfloat16 are passed as uint16, of bool as uint8.
    n : int
        Elements of the whole draw.
    parameters : tuple
        Numbers as in `converted`; (low, high) of "integers", () of "random"; for "bernoulli" also
        an array of floats, one for each element to fill; for "dropout" (p, x, mask), where the
        launches also write the mask of uint8; for "shuffle_runs" the keys of the elements.
    constants : tuple of int
        Of the layout: threads of the largest grid, and the span from which integers take 64 bits.
    count : int, optional
        Elements to fill; `n` by default.
    region : tuple of int, optional
        The elements to fill, as in `make_located`; None: the first ones.
    hardware : bool
        Use the GPU's approximations of elementary functions, as torch does. CUDA only.

    Raises
    ------
    TypeError
        If torch has no such draw for the dtype.
    ValueError
        If a parameter is out of range.
    """
    grid, wide = constants
    local = n if count is None else count
    if distribution == "shuffle_runs":
        return [Fill(shuffle_runs, local, parameters)]
    functions = HARDWARE if hardware else PORTABLE
    spec = torch_spec(distribution, dtype, n, parameters, wide, functions)
    if spec.width:
        # The grid of torch's kernel for an array of probabilities grows with the array.
        threads = _UNLIMITED if distribution == "bernoulli" else _threads(n, grid)
        return [_in_chunks(spec, n, threads, local, region)]
    # torch's dropout has 64-bit offsets; torch halves the other draws until offsets fit 32 bits.
    whole = distribution == "dropout"
    parts = [(0, n, 0)] if whole else pieces(n, ITEMSIZE[dtype], grid, spec.lanes)
    return [
        launch
        for piece in parts
        for launch in _in_strides(spec, n, grid, piece, local, region, alone=whole)
    ]


def stateless_launches(
    distribution: str,
    dtype: str,
    n: int,
    parameters: tuple[Any, ...],
    count: int | None = None,
    region: Box | None = None,
) -> list[Fill]:
    """Return the launches that fill an array with a draw as ``torch.func._random`` does.

    A key of torch is (seed, offset in blocks), the state of a generator with 4 times that offset.

    Parameters
    ----------
    distribution : str
        "uniform" or "integers".
    dtype, n, parameters, count, region
        As in `torch_launches`.

    Raises
    ------
    TypeError
        If there is no such draw for the dtype.
    ValueError
        If a parameter is out of range.
    """
    spec = stateless_spec(distribution, dtype, parameters)
    local = n if count is None else count
    groups = -(-n // spec.lanes)
    run = _run(region, local)
    if run == local == n and groups < _MAX_TILES * TILE:
        # One unlimited chunk of the first grid thread.
        kernel = make_chunked(spec.standard, spec.store, spec.lanes)
        arguments = (np.uint64(groups), np.uint64(0), np.uint64(63), *spec.parameters)
        return [Fill(kernel, groups, arguments)]
    return [_located(spec, plain_locate, (np.uint64(0),) * 3, (0, n, 0), local, region)]


def pieces(n: int, itemsize: int, grid: int, lanes: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, blocks to skip) of the parts that torch draws in sequence.

    There is one part if byte offsets fit int32. Otherwise torch reserves the words of a whole draw,
    leaves them unused, and halves the tensor until its parts fit. Each part reserves further words
    (``TensorIteratorBase::can_use_32bit_indexing`` and ``split``).

    Parameters
    ----------
    n, itemsize : int
        Number of elements, and bytes of an element.
    grid : int
        Threads of the largest grid.
    lanes : int
        Elements per Philox block.
    """
    if n == 0 or _fits(n, itemsize):
        return [(0, n, 0)]
    parts = []
    skip_blocks = _iterations(n, grid, lanes)
    waiting = [(0, n)]
    while waiting:
        begin, end = waiting.pop()
        if _fits(end - begin, itemsize):
            parts.append((begin, end, skip_blocks))
            skip_blocks += _iterations(end - begin, grid, lanes)
        else:
            middle = begin + (end - begin) // 2
            waiting += [(middle, end), (begin, middle)]
    return parts


def _fits(n: int, itemsize: int) -> bool:
    return n <= _INT32_MAX and 1 + (n - 1) * itemsize <= _INT32_MAX


def _threads(n: int, grid: int) -> int:
    return min(-(-n // TILE) * TILE, grid)


def _iterations(n: int, grid: int, lanes: int) -> int:
    return -(-n // (_threads(n, grid) * lanes))


def _run(region: Box | None, count: int) -> int:
    """Return the length of the runs; 0 if it varies."""
    if region is None:
        return count
    return 0 if is_listed(region) else int(region[1])


def _reciprocal(threads: int) -> np.uint64:
    return np.uint64((1 << RECIPROCAL_BITS) // (threads // TILE) + 1)


def _strided(spec: DrawSpec, n: int, threads: int, skip_blocks: int, part: slice | None) -> Fill:
    kernel = make_strided(spec.standard, spec.store, spec.lanes)
    arguments = (np.uint64(threads), _reciprocal(threads), *spec.parameters)
    return Fill(kernel, -(-n // (threads * spec.lanes)) * threads, arguments, part, skip_blocks)


def _in_chunks(spec: DrawSpec, n: int, threads: int, count: int, region: Box | None) -> Fill:
    run = _run(region, count)
    if run == count == n and -(-n // (spec.lanes * TILE)) < _MAX_TILES:
        return _chunked(spec, n, threads)
    rule = (np.uint64(threads), np.uint64(spec.width), np.uint64(0))
    return _located(spec, chunked_locate, rule, (0, n, 0), count, region)


def _in_strides(
    spec: DrawSpec,
    n: int,
    grid: int,
    piece: tuple[int, int, int],
    count: int,
    region: Box | None,
    *,
    alone: bool,
) -> list[Fill]:
    """Return the launches for the elements of a piece; `alone`: one launch."""
    begin, end, skip_blocks = piece
    threads = _threads(end - begin, grid)
    run = _run(region, count)
    if run == count == n:
        part = None if end - begin == n else slice(begin, end)
        return [_strided(spec, end - begin, threads, skip_blocks, part)]
    if run == count and not alone:
        base = 0 if region is None else region[0]
        return _contiguous(spec, piece, threads, base, count)
    rule = (np.uint64(threads), np.uint64(0), np.uint64(0))
    return [_located(spec, strided_locate, rule, piece, count, region)]


def _contiguous(
    spec: DrawSpec, piece: tuple[int, int, int], threads: int, base: int, count: int
) -> list[Fill]:
    """Return the launches of a contiguous run: whole grid iterations, and the two edges."""
    begin, end, skip_blocks = piece
    low, high = max(base, begin), min(base + count, end)
    stride = threads * spec.lanes
    first, last = -(-(low - begin) // stride), (high - begin) // stride
    inner = (begin + first * stride, begin + last * stride) if first < last else (low, low)
    launches = []
    if first < last:
        part = slice(inner[0] - base, inner[1] - base)
        launches.append(_strided(spec, inner[1] - inner[0], threads, skip_blocks + first, part))
    rule = (np.uint64(threads), np.uint64(0), np.uint64(0))
    for start, stop in ((low, inner[0]), (inner[1], high)):
        if start < stop:
            region = (start, stop - start, 1, 0, 0)
            edge = _located(spec, strided_locate, rule, piece, stop - start, region)
            launches.append(edge._replace(part=slice(start - base, stop - base)))
    return launches


def _chunked(spec: DrawSpec, n: int, threads: int) -> Fill:
    shift = spec.width // 8
    groups = threads << shift
    reciprocal = np.uint64(0) if threads == _UNLIMITED else _reciprocal(groups)
    kernel = make_chunked(spec.standard, spec.store, spec.lanes)
    arguments = (np.uint64(groups), reciprocal, np.uint64(shift), *spec.parameters)
    return Fill(kernel, -(-n // spec.lanes), arguments)


def _located(
    spec: DrawSpec,
    index_to_counter: DeviceFunction,
    rule: tuple[np.uint64, ...],
    piece: tuple[int, int, int],
    count: int,
    region: Box | None,
) -> Fill:
    begin, end, skip_blocks = piece
    box = region or (0, count, 1, 0, 0)
    listed = is_listed(box)
    kernel = make_located(index_to_counter, spec.standard, spec.store, spec.lanes, listed)
    where = (np.uint64(begin), np.uint64(end), *box_arguments(box, np.uint64))
    arguments = (*rule, *where, *spec.parameters)
    return Fill(kernel, count, arguments, skip_blocks=skip_blocks)
