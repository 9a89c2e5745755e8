"""`Draw`: what a backend is told of a random fill, in plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Draw", "Region", "RunTable", "Runs"]


class Runs(NamedTuple):
    """Indices along one axis in runs of equal length and spacing, one after the other.

    Index ``i * length + j`` of them is ``start + i * step + j``, for i < count and j < length.

    Attributes
    ----------
    start : int
        The first index.
    length : int
        Indices of a run.
    count : int
        Runs.
    step : int
        From the start of one run to that of the next.
    """

    start: int
    length: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count
    step: int = 0

    @property
    def size(self) -> int:
        """Indices in all."""
        return self.length * self.count


@dataclass(frozen=True, slots=True)
class Region:
    """Which elements of a whole draw an array holds: a box in its index space.

    The array's element with indices ``(i, j, ...)`` is element ``start + i * strides[0] + j *
    strides[1] + ...`` of the whole draw, as in an array's memory. So a slice of a draw, a shard, or
    a strided shard (with its dimension split in two) is one region.

    Parameters
    ----------
    start : int
        Element of the whole draw that the array's first one is.
    shape : tuple of int
        Shape of the array, without zeros.
    strides : tuple of int
        Elements of the whole draw from one element to the next along each dimension.
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def rows(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """Contiguous runs: (count, stride) of the dimensions that step over them, and a run.

        Dimensions that lie dense in one another are one; the outermost comes first.
        """
        sizes: list[int] = []
        steps: list[int] = []
        for size, step in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if sizes and steps[-1] == size * step:
                sizes[-1] *= size
                steps[-1] = step
            else:
                sizes.append(size)
                steps.append(step)
        run = sizes.pop() if steps and steps[-1] == 1 else 1
        return tuple(zip(sizes, steps[: len(sizes)], strict=True)), run


@dataclass(frozen=True, slots=True, repr=False)
class RunTable:
    """Which elements of a whole draw an array holds: a table of runs, of any length and anywhere.

    So parts with thousands of runs that no closed form gives are one draw. Element ``r *
    begins[-1] + i`` of the array, ``begins[k] <= i < begins[k + 1]``, is element ``starts[k] + r *
    step + i - begins[k]`` of the whole draw: the table may be gone through more than once.

    Parameters
    ----------
    starts : array of int64, shape (runs,)
        The first element of each run, in memory of the device.
    begins : array of int64, shape (runs + 1,)
        How many elements the runs before each have, and all of them, in memory of the device.
    size : int
        Elements of all runs.
    unit : int
        What divides all numbers in the table.
    count : int
        How often the table is gone through.
    step : int
        Elements of the whole draw from one time to the next.
    """

    starts: Any
    begins: Any
    size: int
    unit: int
    count: int = 1
    step: int = 0

    def __repr__(self) -> str:
        runs = f"{len(self.starts)} runs, {self.size} elements"
        return f"RunTable({runs}, count={self.count}, step={self.step})"

    @property
    def shape(self) -> tuple[int, int]:
        """Times through the table, and elements of each."""
        return self.count, self.size


class Draw(NamedTuple):
    """A fill of an array with elements of one draw from a Philox stream.

    Attributes
    ----------
    distribution : str
        What is drawn: "uniform", "normal", "gamma", ...
    dtype : str
        Name of the elements' dtype. An array of bfloat16 comes as uint16, one of bool as uint8.
    n : int
        Elements of the whole draw.
    parameters : tuple
        Of the distribution: numbers, or contiguous 1-D arrays of the device with one value for
        each element of the array to fill.
    layout : str
        Name of the rule that gives each element its words.
    constants : tuple of int
        What the rule depends on, such as the threads of the GPU that it follows.
    locate : callable or None
        The rule itself, as a device function, where the backend does not know its name.
    region : Region, RunTable or None
        Which elements the array holds; None: the first ones, in order.
    seed, offset : int
        The Philox stream and the 32-bit words that were taken from it before.
    place : array or None
        uint64[2] in device memory, to take seed and offset from when the draw runs; `offset` is
        then added to it.
    shape : tuple of int
        The array's shape, as the caller sees it.
    generator : int
        Number of the generator in this process, for whoever watches; 0: none.
    memo : dict or None
        Where a backend may keep what it made of everything but the place in the stream; shared by
        draws that are equal but for that, on one device.
    """

    distribution: str
    dtype: str
    n: int
    parameters: tuple[Any, ...] = ()
    layout: str = "element"
    constants: tuple[int, ...] = ()
    locate: Any = None
    region: Region | RunTable | None = None
    seed: int = 0
    offset: int = 0
    place: Any = None
    shape: tuple[int, ...] = ()
    generator: int = 0
    memo: dict[Any, Any] | None = None

    @property
    def held(self) -> int:
        """Elements that the array holds."""
        return self.n if self.region is None else math.prod(self.region.shape)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What a fill reads from memory of the device, or may read."""
        table = self.region
        listed = (table.starts, table.begins) if isinstance(table, RunTable) else ()
        return (*self.parameters, self.place, *listed)
