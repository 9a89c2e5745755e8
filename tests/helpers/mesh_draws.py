"""Draws of distributed tensors, held to what one device draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
import nbrt.distributed as dist
from nbrt.distributed.dtensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["assert_as_on_one_device"]

SEED, SKIPPED = 5, 12


def assert_as_on_one_device(
    draw: Callable[[Any], Any],
    mesh_shape: tuple[int, ...],
    placements: Sequence[dist.Placement] | None,
    *,
    ranks: int | None = None,
    **layout: Any,
) -> None:
    """Draw on one device, and on ranks of which the first are a mesh; bits and states are equal.

    `draw` is called with a generator: a plain one, then a `MeshGenerator` on each rank.
    """
    single = nbrt.Generator(SEED, device="cpu:0", **layout).advance(SKIPPED)
    expected = _listed(draw(single))

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", mesh_shape)
        generator = nbrt.Generator(SEED, **layout).advance(SKIPPED)
        results = _listed(draw(dist.MeshGenerator(mesh, placements, generator)))
        assert generator.state == single.state
        for result, wanted in zip(results, expected, strict=True):
            if not isinstance(result, DTensor):
                assert result == wanted
                continue
            assert result.shape == np.shape(wanted)
            assert result.dtype == np.asarray(wanted).dtype
            whole = result.full_tensor()
            if mesh.get_coordinate() is not None:
                assert np.array_equal(whole, wanted)

    dist.run(rank, ranks=math.prod(mesh_shape) if ranks is None else ranks)


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]
