"""`rand`, `randn` and `randint` with the signatures of ``torch.distributed.tensor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.random.mesh_generator import MeshGenerator
from nbrt.random import functions
from nbrt.random.functions import rand_like, randint_like, randn_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.dtensor import DTensor
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.random.generator import Generator
    from nbrt.typing import DTypeLike, Shape

__all__ = ["rand", "rand_like", "randint", "randint_like", "randn", "randn_like"]


def rand(
    *size: Any,
    dtype: DTypeLike = np.float32,
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
    generator: Generator | None = None,
) -> DTensor:
    """Return a distributed tensor of uniform floats in [0, 1); see `Generator.random`.

    Parameters
    ----------
    *size : int, or one tuple of int
        Shape of the whole tensor.
    dtype : dtype
        A float type.
    device_mesh : DeviceMesh, optional
        The ranks; the innermost ``with mesh:`` by default.
    placements : Placement or sequence of Placement, optional
        One for each dimension of the mesh; all replicated by default.
    generator : Generator, optional
        By default the default generator of this rank's device.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> with dist.init_device_mesh("cpu", (1,)):
    ...     dist.rand(4, 6, placements=[dist.Shard(0)]).shape
    (4, 6)
    """
    draw = MeshGenerator(device_mesh, placements, generator).random
    result: DTensor = draw(_shape(size), dtype)
    return result


def randn(
    *size: Any,
    dtype: DTypeLike = np.float32,
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
    generator: Generator | None = None,
) -> DTensor:
    """Return a distributed tensor of standard normal floats; see `rand`."""
    draw = MeshGenerator(device_mesh, placements, generator).standard_normal
    result: DTensor = draw(_shape(size), dtype)
    return result


def randint(
    low: int,
    high: int | Shape | None = None,
    size: Shape | None = None,
    *,
    dtype: DTypeLike = np.int64,
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
    generator: Generator | None = None,
) -> DTensor:
    """Return a distributed tensor of integers in [low, high).

    Called as ``randint(high, size)`` or ``randint(low, high, size)``; see `rand` for the rest.
    """
    chosen: Any = MeshGenerator(device_mesh, placements, generator)
    result: DTensor = functions.randint(low, high, size, dtype=dtype, generator=chosen)
    return result


def _shape(size: tuple[Any, ...]) -> Any:
    return size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
