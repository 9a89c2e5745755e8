"""`index_map`: the positions of a rank's elements in a distributed tensor, for kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbrt.distributed.spec import checked_spec
from nbrt.index_sets import dense
from nbrt.runtime.array import asarray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.dtensor import DTensor
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.index_sets import Runs
    from nbrt.typing import Array

__all__ = ["index_map"]

_NUMBERS = 4


class _MapAxis(NamedTuple):
    size: int
    stride: int
    runs: tuple[Runs, ...] = ()


def index_map(tensor: DTensor | DTensorSpec) -> Array:
    """Return an array from which a kernel computes the global index of each local element.

    In a kernel, ``nbrt_kernels.random.global_index(index_map, i)`` returns the index in the whole
    tensor of element i of this rank's part, both in C order. A kernel that computes random numbers
    from it gives the same values on all meshes.

    Parameters
    ----------
    tensor : DTensor or DTensorSpec
        The tensor, usually without `Partial` placements.

    Returns
    -------
    index_map : array of int64
        On this rank's device; its format is in ``nbrt_kernels.random._index_maps``.

    Examples
    --------
    >>> import nbrt
    >>> import nbrt.distributed as dist
    >>> from nbrt_kernels.random import global_index, uniform4
    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def draw(out, index_map, seed):
    ...     i = cuda.grid(1)
    ...     if i < out.size:
    ...         g = global_index(index_map, i)
    ...         x = uniform4(seed, 0, g // 4)
    ...         out[i] = x[g % 4]
    >>> def on_each_rank():
    ...     mesh = dist.init_device_mesh("cpu", (4,))
    ...     spec = dist.DTensorSpec(mesh, [dist.Shard(0)], (10,), "float32")
    ...     out = nbrt.empty(spec.local_shape, spec.dtype)
    ...     draw.forall(out.size)(out, dist.index_map(spec), 7)
    ...     nbrt.synchronize()
    ...     return out.tolist()
    >>> parts = dist.run(on_each_rank, ranks=4)
    >>> whole = nbrt.Generator(7).random(10, "float32")
    >>> [x for part in parts for x in part] == whole.tolist()
    True
    """
    spec = checked_spec(getattr(tensor, "spec", tensor))
    runs = spec.local_runs
    start, axes = (0, []) if runs is None else _axes(spec.shape, runs)
    return asarray(np.array(_numbers(start, axes), np.int64), device=spec.mesh.device, copy=None)


def _axes(shape: Sequence[int], local_runs: Sequence[Sequence[Runs]]) -> tuple[int, list[_MapAxis]]:
    """Return the first element of a part, and its merged axes, the innermost first."""
    start, stride = 0, 1
    axes: list[_MapAxis] = []
    regular: list[tuple[int, int]] = []  # (count, step) not in `axes` yet, outermost first
    for size, runs in zip(reversed(shape), reversed(local_runs), strict=True):
        if len(runs) == 1:
            run = runs[0]
            start += run.start * stride
            regular = [(run.count, run.step * stride), (run.length, stride), *regular]
        else:
            axes += _merged(regular)
            axes.append(_MapAxis(sum(run.size for run in runs), stride, tuple(runs)))
            regular = []
        stride *= size
    return start, axes + _merged(regular)


def _merged(dims: Sequence[tuple[int, int]]) -> list[_MapAxis]:
    """Return as few axes as hold the dimensions, the innermost first."""
    return [_MapAxis(size, stride) for size, stride in reversed(dense(dims))]


def _numbers(start: int, axes: Sequence[_MapAxis]) -> list[int]:
    """Return the map: a head, the axes, then all runs; see ``nbrt_kernels.random._index_maps``."""
    head = [start, len(axes)]
    tail: list[int] = []
    first = len(head) + _NUMBERS * len(axes)
    for axis in axes:
        at = first + len(tail) if axis.runs else 0
        head += [axis.size, axis.stride, len(axis.runs), at]
        end = 0
        for run in axis.runs:
            end += run.size
            tail += [end, run.start, run.length, run.step]
    return head + tail
