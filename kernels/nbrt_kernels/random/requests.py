"""Launches of fill kernels for a draw, for every backend."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from nbrt_kernels.random.distributions import DISTRIBUTIONS, integer_spec, spec_of
from nbrt_kernels.random.distributions.samplers import SAMPLED, sampler_fills
from nbrt_kernels.random.dropout import dropout_kernel, keep_threshold, scale_kernel
from nbrt_kernels.random.fills import (
    TILE_BLOCKS,
    each_integer_kernel,
    fill,
    fill_rows,
    fill_rows_threads,
    fill_table_threads,
    fill_threads,
    touched_blocks,
)
from nbrt_kernels.random.launches import (
    THREADS,
    Fill,
    Part,
    Table,
    box_arguments,
    boxes,
    cut,
    is_listed,
    is_table,
    within,
)
from nbrt_kernels.random.parameters import each_integer_parameters
from nbrt_kernels.random.short_runs import (
    SHORT_BLOCKS,
    fill_short_runs,
    short_runs_threads,
)
from nbrt_kernels.random.transforms import bits_24, is_below

__all__ = ["DrawRequest", "Fill", "fills_of"]

_ONE_TILE = 1


class DrawRequest(Protocol):
    """The attributes of a draw that launches need; `nbrt.backends.draw.Draw` has them."""

    @property
    def distribution(self) -> str:
        """Return the name of the distribution."""

    @property
    def dtype(self) -> str:
        """Return the name of the elements' dtype."""

    @property
    def n(self) -> int:
        """Return the number of elements of the whole draw."""

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Return numbers, or arrays with a value for each local element."""

    @property
    def layout(self) -> str:
        """Return the name of the layout, the map from elements to words."""

    @property
    def constants(self) -> tuple[int, ...]:
        """Return the constants of the layout."""

    @property
    def index_to_counter(self) -> Any:
        """Return the device function of a custom layout, else None."""

    @property
    def region(self) -> Part | Table | None:
        """Return the region of the draw that the array holds; None: the first elements."""

    @property
    def local_size(self) -> int:
        """Return the number of elements of the array."""


def fills_of(draw: DrawRequest, *, gpu: bool = False) -> list[Fill]:
    """Return the launches that fill an array with a draw, at any position in its stream.

    Parameters
    ----------
    draw : DrawRequest
        The draw.
    gpu : bool
        Whether the launches run on a GPU. Then each thread draws one Philox block instead of a
        tile for a vector unit, and the torch layout uses the approximate functions of the GPU.

    Raises
    ------
    TypeError
        If the distribution is unknown or does not support the dtype.
    ValueError
        If a parameter is out of range.
    """
    if draw.layout == "element":
        return _element_fills(draw, 1 if gpu else TILE_BLOCKS)
    # Most programs use no other layout, and these imports take a tenth of a second.
    from nbrt_kernels.random.custom_layout import custom_layout_launch
    from nbrt_kernels.random.torch import stateless_launches, torch_launches

    fills = []
    for part, size, box in boxes(draw.region, draw.local_size):
        parameters = cut(draw.parameters, draw.local_size, part)
        head = (draw.distribution, draw.dtype, draw.n, parameters)
        if draw.layout == "torch":
            launches = torch_launches(*head, draw.constants, size, box, hardware=gpu)
        elif draw.layout == "torch_stateless":
            launches = stateless_launches(*head, size, box)
        elif draw.index_to_counter is not None:
            launches = [
                custom_layout_launch(*head, draw.constants, draw.index_to_counter, size, box)
            ]
        else:
            message = f"expected a layout of this backend, got {draw.layout!r}"
            raise ValueError(message)
        fills += [launch._replace(part=within(part, launch.part)) for launch in launches]
    return fills


def _element_fills(draw: DrawRequest, tile: int) -> list[Fill]:
    distribution, dtype, parameters = draw.distribution, draw.dtype, draw.parameters
    if distribution in SAMPLED:
        gpu, where = tile == _ONE_TILE, (draw.local_size, draw.region)
        fills = sampler_fills(distribution, dtype, parameters, *where, gpu=gpu)
        # On a CPU, sparse launches iterate over single threads.
        return [launch._replace(block=THREADS) for launch in fills] if gpu else fills
    if distribution == "dropout":
        return _dropout_fills(draw, tile)
    if distribution == "integers_each":
        return _each_fills(draw)
    rejects = distribution == "integers"
    if rejects:
        spec = integer_spec(dtype, *parameters)
    elif distribution in DISTRIBUTIONS:
        spec = spec_of(distribution, dtype)
    else:
        known = ", ".join((*DISTRIBUTIONS, *SAMPLED, "integers", "dropout"))
        message = f"expected a distribution of {known}, got {distribution!r}"
        raise TypeError(message)
    typed = spec.parameters(parameters, dtype)
    arrays = sum(np.ndim(value) > 0 for value in typed)
    kind = {"pairs": spec.pairs, "wide": spec.wide, "arrays": arrays, "rejects": rejects}
    skip_blocks = _blocks_to_skip(draw.region, spec.wide)
    if skip_blocks is not None:
        threads = fill_threads(draw.local_size, wide=spec.wide, blocks=tile)
        kernel = fill(spec.standard, spec.finish, blocks=tile, **kind)
        return [Fill(kernel, threads, typed, skip_blocks=skip_blocks, block=_block(tile))]
    parts = {"standard": spec.standard, "finish": spec.finish, **kind}
    return _row_fills(parts, typed, draw, tile)


def _blocks_to_skip(region: Part | Table | None, wide: bool) -> int | None:
    """Return the Philox blocks before a region that is one run from a block boundary, else None.

    Such a region, as most shards of rows are, is a dense draw at a later position.
    """
    if region is None:
        return 0
    if is_table(region):
        return None
    region = cast("Part", region)
    rows, _ = region.rows
    skip_blocks, within_block = divmod(region.start, 2 if wide else 4)
    return None if rows or within_block else skip_blocks


def _row_fills(
    parts: dict[str, Any], typed: tuple[Any, ...], draw: DrawRequest, tile: int
) -> list[Fill]:
    """Return the launches over the runs of a region; `parts` are arguments of `fill_rows`."""
    wide = parts.get("wide", False)
    fills = []
    for part, size, box in boxes(draw.region, draw.local_size):
        assert box is not None
        if is_listed(box):
            threads = fill_table_threads(size, box[2], box[3], wide=wide, blocks=tile)
            kernel = fill_rows(**parts, blocks=tile, listed=True)
        elif tile != _ONE_TILE and touched_blocks(box[1], wide=wide) <= SHORT_BLOCKS:
            kernel, threads = fill_short_runs(**parts), short_runs_threads(size, box[1], wide=wide)
        else:
            threads = fill_rows_threads(size, box[1], wide=wide, blocks=tile)
            kernel = fill_rows(**parts, blocks=tile)
        arguments = (*box_arguments(box, np.int64), *cut(typed, draw.local_size, part))
        fills.append(Fill(kernel, threads, arguments, part, block=_block(tile)))
    return fills


def _each_fills(draw: DrawRequest) -> list[Fill]:
    """Return the launches of integers with a range for each element."""
    low, span = draw.parameters
    typed = each_integer_parameters(low, span, draw.dtype)
    kernel = each_integer_kernel(draw.dtype in ("int64", "uint64"), is_table(draw.region))
    fills = []
    for part, size, box in boxes(draw.region, draw.local_size):
        where = box_arguments(box or (0, draw.local_size, 1, 0, 0), np.int64)
        fills.append(Fill(kernel, size, (*where, *cut(typed, draw.local_size, part)), part))
    return fills


def _dropout_fills(draw: DrawRequest, tile: int) -> list[Fill]:
    p, x, mask = draw.parameters
    if draw.dtype not in ("float16", "bfloat16", "float32", "float64"):
        message = f"dropout: expected an array of floats, got {draw.dtype}"
        raise TypeError(message)
    threshold = keep_threshold(1.0 - p)
    scale = (np.float64 if draw.dtype == "float64" else np.float32)(1.0 / (1.0 - p))
    skip_blocks = _blocks_to_skip(draw.region, False)
    if skip_blocks is not None:
        threads = fill_threads(draw.local_size, blocks=tile)
        kernel = dropout_kernel(draw.dtype, tile)
        arguments = (mask, x, threshold, scale)
        return [Fill(kernel, threads, arguments, skip_blocks=skip_blocks, block=_block(tile))]
    parts = {"standard": bits_24, "finish": is_below}
    fills = _row_fills(parts, (threshold,) * 3, draw, tile)
    scaled = Fill(scale_kernel(draw.dtype), draw.local_size, (mask, x, scale))
    return [*(launch._replace(target=mask) for launch in fills), scaled]


def _block(tile: int) -> int:
    return THREADS if tile == _ONE_TILE else 1
