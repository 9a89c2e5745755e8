"""From a draw to the launches of fill kernels that make it, for every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbrt_kernels.random.distributions import DISTRIBUTIONS, DistributionSpec, spec_of
from nbrt_kernels.random.distributions.samplers import SAMPLED, sampler_fills
from nbrt_kernels.random.dropout import dropout_kernel, keep_threshold, scale_kernel
from nbrt_kernels.random.fills import (
    TILE_BLOCKS,
    fill,
    fill_rows,
    fill_rows_threads,
    fill_table_threads,
    fill_threads,
)
from nbrt_kernels.random.integer_draws import each_kernel, integer_spec
from nbrt_kernels.random.launches import (
    THREADS,
    Fill,
    Part,
    Table,
    box_arguments,
    boxes,
    cut,
    is_listed,
    within,
)
from nbrt_kernels.random.parameters import each_integer_parameters, no_parameters
from nbrt_kernels.random.transforms import bits_24, is_below

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Fill", "Request", "fills_of"]

_ONE_TILE = 1


class Request(Protocol):
    """What is read of a draw, such as `nbrt.backends.draw.Draw`."""

    @property
    def distribution(self) -> str:
        """Return what is drawn."""
        ...

    @property
    def dtype(self) -> str:
        """Return the name of the elements' dtype."""
        ...

    @property
    def n(self) -> int:
        """Return the elements of the whole draw."""
        ...

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Return numbers, or arrays with a value for each element held."""
        ...

    @property
    def layout(self) -> str:
        """Return the name of the rule that gives elements their words."""
        ...

    @property
    def constants(self) -> tuple[int, ...]:
        """Return the numbers that the rule needs."""
        ...

    @property
    def index_to_counter(self) -> Any:
        """Return the rule as a device function, if it is nobody's here; else None."""
        ...

    @property
    def region(self) -> Part | Table | None:
        """Return which elements the array holds; None: the first ones."""
        ...

    @property
    def local_size(self) -> int:
        """Return how many elements the array holds."""
        ...


def fills_of(draw: Request, *, gpu: bool = False) -> list[Fill]:
    """Return the launches that make a draw, wherever it is in its stream.

    Parameters
    ----------
    draw : Request
        The draw.
    gpu : bool
        Whether they run on a GPU, whose threads draw one Philox block each instead of a tile that
        fills a vector unit, and whose approximate functions are what the torch layout is about.

    Raises
    ------
    TypeError
        If there is no such draw for the dtype.
    ValueError
        If a parameter is out of range.
    """
    if draw.layout == "element":
        return _element_fills(draw, 1 if gpu else TILE_BLOCKS)
    # Most programs use no other layout: what those take, a tenth of a second, is imported here.
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
            message = f"expected a layout that this backend knows, got {draw.layout!r}"
            raise ValueError(message)
        fills += [one._replace(part=within(part, one.part)) for one in launches]
    return fills


def _element_fills(draw: Request, tile: int) -> list[Fill]:
    distribution, dtype, parameters = draw.distribution, draw.dtype, draw.parameters
    if distribution in SAMPLED:
        fills = sampler_fills(distribution, dtype, parameters, draw.local_size, draw.region)
        # A launch that has little to do goes through it thread by thread on a CPU.
        return [one._replace(block=THREADS) for one in fills] if tile == _ONE_TILE else fills
    if distribution == "dropout":
        return _dropout_fills(draw, tile)
    if distribution == "integers_each":
        return _each_fills(draw)
    rejects = distribution == "integers"
    if rejects:
        made = integer_spec(dtype, *parameters)
    elif distribution in DISTRIBUTIONS:
        made = spec_of(distribution, dtype)
    else:
        known = ", ".join((*DISTRIBUTIONS, *SAMPLED, "integers", "dropout"))
        message = f"expected a distribution of {known}, got {distribution!r}"
        raise TypeError(message)
    typed = made.parameters(parameters, dtype)
    arrays = sum(np.ndim(value) > 0 for value in typed)
    kind = {"pairs": made.pairs, "wide": made.wide, "arrays": arrays, "rejects": rejects}
    skip_blocks = _blocks_ahead(draw.region, made.wide)
    if skip_blocks is not None:
        threads = fill_threads(draw.local_size, wide=made.wide, blocks=tile)
        kernel = fill(made.standard, made.finish, blocks=tile, **kind)
        return [Fill(kernel, threads, typed, skip_blocks=skip_blocks, block=_block(tile))]
    listed = isinstance(draw.region, Table)
    kernel = fill_rows(made.standard, made.finish, blocks=tile, listed=listed, **kind)
    return _row_fills(kernel, typed, draw, made, tile)


def _blocks_ahead(region: Part | Table | None, wide: bool) -> int | None:
    """Return the Philox blocks before a part that is one run from the start of a block, else None.

    Such a part, as most shards of rows are, is a dense draw from further on.
    """
    if region is None:
        return 0
    if isinstance(region, Table):
        return None
    rows, _ = region.rows
    skip_blocks, within_block = divmod(region.start, 2 if wide else 4)
    return None if rows or within_block else skip_blocks


def _row_fills(
    kernel: Callable[..., None],
    typed: tuple[Any, ...],
    draw: Request,
    made: DistributionSpec,
    tile: int,
) -> list[Fill]:
    fills = []
    for part, size, box in boxes(draw.region, draw.local_size):
        assert box is not None  # of a region
        if is_listed(box):
            threads = fill_table_threads(size, box[2], box[3], wide=made.wide, blocks=tile)
        else:
            threads = fill_rows_threads(size, box[1], wide=made.wide, blocks=tile)
        arguments = (*box_arguments(box, np.int64), *cut(typed, draw.local_size, part))
        fills.append(Fill(kernel, threads, arguments, part, block=_block(tile)))
    return fills


def _each_fills(draw: Request) -> list[Fill]:
    """Return the launches of integers with a range for each element."""
    low, span = draw.parameters
    typed = each_integer_parameters(low, span, draw.dtype)
    kernel = each_kernel(draw.dtype in ("int64", "uint64"), isinstance(draw.region, Table))
    fills = []
    for part, size, box in boxes(draw.region, draw.local_size):
        place = box_arguments(box or (0, draw.local_size, 1, 0, 0), np.int64)
        fills.append(Fill(kernel, size, (*place, *cut(typed, draw.local_size, part)), part))
    return fills


def _dropout_fills(draw: Request, tile: int) -> list[Fill]:
    p, x, mask = draw.parameters
    if draw.dtype not in ("float16", "bfloat16", "float32", "float64"):
        message = f"dropout: expected an array of floats, got {draw.dtype}"
        raise TypeError(message)
    threshold = keep_threshold(1.0 - p)
    scale = (np.float64 if draw.dtype == "float64" else np.float32)(1.0 / (1.0 - p))
    skip_blocks = _blocks_ahead(draw.region, False)
    if skip_blocks is not None:
        threads = fill_threads(draw.local_size, blocks=tile)
        kernel = dropout_kernel(draw.dtype, tile)
        arguments = (mask, x, threshold, scale)
        return [Fill(kernel, threads, arguments, skip_blocks=skip_blocks, block=_block(tile))]
    made = DistributionSpec(bits_24, is_below, None, False, no_parameters)
    masked = fill_rows(bits_24, is_below, blocks=tile, listed=isinstance(draw.region, Table))
    fills = _row_fills(masked, (threshold,) * 3, draw, made, tile)
    scaled = Fill(scale_kernel(draw.dtype), draw.local_size, (mask, x, scale))
    return [*(one._replace(target=mask) for one in fills), scaled]


def _block(tile: int) -> int:
    return THREADS if tile == _ONE_TILE else 1
