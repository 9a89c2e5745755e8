"""`Draw`: a random fill, as plain values for a backend."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nbrt.index_sets import Region, RunTable

__all__ = ["REPEAT", "Draw"]

REPEAT = "repeat"
"""Key of a draw's memo."""


class Draw(NamedTuple):
    """A fill of an array with elements of one draw from a Philox stream.

    Attributes
    ----------
    distribution : str
        Its name: "uniform", "normal", "gamma", ...
    dtype : str
        Name of the elements' dtype. Arrays of bfloat16 are passed as uint16, of bool as uint8.
    n : int
        Elements of the whole draw.
    parameters : tuple
        Of the distribution: numbers, or contiguous 1-D arrays of the device with one value for
        each element of the array to fill.
    layout : str
        Name of the rule that gives each element its words.
    constants : tuple of int
        Parameters of the rule, such as the threads of the GPU that it follows.
    index_to_counter : callable or None
        The rule as a device function, if the backend does not know its name.
    region : Region, RunTable or None
        The elements that the array holds; None: all, in order.
    seed, offset : int
        The Philox key, and the 32-bit words consumed before the draw.
    device_state : array or None
        uint64[2] in device memory, read when the draw runs: seed and an offset, to which `offset`
        is added.
    shape : tuple of int
        The array's shape before it was flattened.
    generator : int
        Number of the generator in this process, for hooks; 0: none.
    memo : dict or None
        A cache for the backend's plan. Draws on one device that differ in seed and offset only
        share it. Under `REPEAT` a backend may keep a function of (queue, out, seed, offset) that
        makes the draw again from another place, on any stream of the device, into an aligned array.
    """

    distribution: str
    dtype: str
    n: int
    parameters: tuple[Any, ...] = ()
    layout: str = "element"
    constants: tuple[int, ...] = ()
    index_to_counter: Any = None
    region: Region | RunTable | None = None
    seed: int = 0
    offset: int = 0
    device_state: Any = None
    shape: tuple[int, ...] = ()
    generator: int = 0
    memo: dict[Any, Any] | None = None

    @property
    def local_size(self) -> int:
        """Elements that the array holds."""
        return self.n if self.region is None else math.prod(self.region.shape)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The values that a fill may read from memory of the device."""
        table = self.region
        listed = (table.starts, table.begins) if isinstance(table, RunTable) else ()
        return (*self.parameters, self.device_state, *listed)
