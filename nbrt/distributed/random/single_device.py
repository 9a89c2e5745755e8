"""`SingleDeviceRNGTracker`: every sharding draws the values of a single device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.draw import Region
from nbrt.distributed.random.state_tracker import RNGStateTracker

if TYPE_CHECKING:
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.random.generator import Generator

__all__ = ["SingleDeviceRNGTracker"]

_MOST_PARTS = 256
_NOTHING = Region(0, (0,), (0,))


class SingleDeviceRNGTracker(RNGStateTracker):
    """Draws a rank's part of what one device would draw: the same bits on any mesh, the default.

    A rank evaluates the generator's layout at the indices that it holds, and moves the state as
    the draw of the whole does. Nothing is said between ranks, and replicas draw equal values. Ranks
    off the mesh, and those whose part is empty, draw nothing and move on too, so generators that
    start equal stay equal.
    """

    def _part(self, generator: Generator, spec: DTensorSpec) -> Generator:
        parts = generator._parts
        runs, _ = spec._own()
        # Nothing of the mesh, which would live as long as the generator. Runs, of which there may
        # be thousands, take long to hash: those that are kept have an id of their own.
        key = (spec.shape, id(runs))
        known = parts.get(key)
        if known is None:
            if len(parts) >= _MOST_PARTS:
                parts.clear()
            part = generator.shard(spec.shape, _NOTHING if runs is None else runs)
            known = parts[key] = runs, part
        return known[1]
