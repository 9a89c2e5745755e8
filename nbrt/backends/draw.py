"""`Draw`: what a backend is told of a random fill, in plain values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nbrt.index_sets import Region, RunTable

__all__ = ["Draw"]


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
    index_to_counter : callable or None
        The rule itself, as a device function, where the backend does not know its name.
    region : Region, RunTable or None
        Which elements the array holds; None: the first ones, in order.
    seed, offset : int
        The Philox stream and the 32-bit words that were taken from it before.
    device_state : array or None
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
        """What a fill reads from memory of the device, or may read."""
        table = self.region
        listed = (table.starts, table.begins) if isinstance(table, RunTable) else ()
        return (*self.parameters, self.device_state, *listed)
