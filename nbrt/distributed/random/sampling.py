"""Choices and permutations of distributed tensors: methods of `MeshGenerator` as functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.ops.propagation import on_other_dim, replicate_dims, shard_dim
from nbrt.distributed.random.parameters import checked_tensor, known_scalar, take_copy, take_runs
from nbrt.distributed.random.state_tracker import rewind_on_failure
from nbrt.distributed.spec import DTensorSpec
from nbrt.random.arguments import integer, is_array, rectangular
from nbrt.random.array_filler import call_on_stream
from nbrt.random.sampling import checked_axis
from nbrt.runtime.array import asarray, copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from nbrt._internal.device import Device
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.random.generator import Generator
    from nbrt.typing import Array, ArrayLike, Shape

__all__ = ["choice", "permutation", "permuted"]


class _MeshGenerator(Protocol):
    """The part of `MeshGenerator` that these functions use."""

    @property
    def device(self) -> Device: ...
    @property
    def device_mesh(self) -> DeviceMesh: ...
    @property
    def plain(self) -> Generator: ...
    def checked_plain(self) -> Generator: ...
    def region(self, spec: DTensorSpec) -> AbstractContextManager[Generator]: ...
    def result_spec(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DTensorSpec: ...
    def out_spec(self, out: Any, size: Shape | None, dtype: np.dtype[Any]) -> DTensorSpec: ...
    def place(self, tensor: DTensor) -> DTensor: ...


def permutation(generator: _MeshGenerator, x: int | ArrayLike, axis: int) -> DTensor:
    """Return a shuffled copy; see `MeshGenerator.permutation`."""
    with rewind_on_failure(generator.checked_plain()) as plain:
        if not is_array(x):
            count = integer("x", known_scalar("x", x, generator.device_mesh))
            return _shard_whole(generator, plain.permutation(count))
        source = _with_whole_axis(generator, x, axis)
        order = plain.permutation(source.shape[axis])
        return _taken(generator, source, order, axis, source.shape, _placements_of(x, source))


def permuted(generator: _MeshGenerator, x: ArrayLike, axis: int | None, out: Any) -> DTensor:
    """Return a copy with each slice shuffled for itself; see `MeshGenerator.permuted`."""
    with rewind_on_failure(generator.checked_plain()):
        if axis is None:
            result = _permuted_elements(generator, x)
        else:
            source = _with_whole_axis(generator, x, axis)
            result = _permuted_lines(generator, source, axis, _placements_of(x, source))
        if out is None:
            return result
        spec = generator.out_spec(out, result.shape, result.dtype)
        copy(out._local, result.redistribute(placements=spec.placements)._local)
        filled: DTensor = out
        return filled


def choice(
    generator: _MeshGenerator,
    a: ArrayLike,
    size: Shape | None,
    replace: bool,
    p: ArrayLike | None,
    axis: int,
    shuffle: bool,
) -> DTensor:
    """Return elements picked at random; see `MeshGenerator.choice`."""
    device = generator.device
    with rewind_on_failure(generator.checked_plain()) as plain:
        if not is_array(a):
            a = known_scalar("a", a, generator.device_mesh)
            picks = plain.choice(a, size, replace, p, 0, shuffle)
            return _shard_whole(generator, asarray(picks, device=device, copy=None))
        source = _with_whole_axis(generator, a, axis)
        axis %= source.ndim
        picks = plain.choice(source.shape[axis], size, replace, p, 0, shuffle)
        picks = asarray(picks, device=device, copy=None)
        shape = (*source.shape[:axis], *picks.shape, *source.shape[axis + 1 :])
        shift = picks.ndim - 1
        placements = [
            on_other_dim(each, dim + shift)
            if (dim := shard_dim(each)) is not None and dim > axis
            else each
            for each in source.placements
        ]
        return _taken(generator, source, picks, axis, shape, placements)


def _with_whole_axis(generator: _MeshGenerator, x: Any, axis: int) -> DTensor:
    """Return a tensor whose axis is not split."""
    if isinstance(x, DTensor):
        tensor = checked_tensor(x, generator.device_mesh)
    else:
        array = asarray(rectangular("x", x), device=generator.device, copy=None)
        spec = DTensorSpec(generator.device_mesh, None, array.shape, array.dtype)
        tensor = DTensor(array.reshape(-1)[:0] if spec.local_runs is None else array, spec)
    placements = replicate_dims(tensor.placements, [checked_axis(axis, tensor.ndim)])
    if placements == tensor.placements:
        return tensor
    return tensor.redistribute(placements=placements)


def _taken(
    generator: _MeshGenerator,
    source: DTensor,
    picks: Array,
    axis: int,
    shape: tuple[int, ...],
    placements: Sequence[Placement],
) -> DTensor:
    """Return ``source.take(picks, axis)``, with the generator's placements if it has some."""
    spec = DTensorSpec(generator.device_mesh, placements, shape, source.dtype)
    local = source._local
    if spec.local_runs is not None:
        device = generator.device
        axis %= source.ndim
        own = take_runs(picks, spec.local_runs[axis : axis + picks.ndim], device)
        local = asarray(call_on_stream(device, np.take, local, own, axis), device=device, copy=None)
    return generator.place(DTensor(local, spec))


def _permuted_lines(
    generator: _MeshGenerator, source: DTensor, axis: int, placements: tuple[Placement, ...]
) -> DTensor:
    spec = source._spec
    with generator.region(spec) as part:
        keys = part.random_bits(spec.local_shape, np.uint64)
    result = spec.replaced(placements=placements)
    local = source._local
    if spec.local_runs is not None and result.local_runs is not None:
        device = generator.device
        axis %= source.ndim
        order = call_on_stream(device, np.argsort, keys, axis, "stable")
        own = take_runs(order, result.local_runs[axis : axis + 1], device, first=axis)
        local = call_on_stream(device, np.take_along_axis, local, own, axis)
    return generator.place(DTensor(local, result))


def _permuted_elements(generator: _MeshGenerator, x: Any) -> DTensor:
    """Return all elements in random order; every rank gathers all of them."""
    placements = x.placements if isinstance(x, DTensor) else None
    if isinstance(x, DTensor):
        checked_tensor(x, generator.device_mesh)
        shape, dtype = x.shape, x.dtype
        whole = x.full_tensor()
    else:
        whole = asarray(rectangular("x", x), device=generator.device, copy=None)
        shape, dtype = whole.shape, whole.dtype
    order = generator.plain.permutation(math.prod(shape))
    spec = DTensorSpec(generator.device_mesh, placements, shape, dtype)
    local = whole.reshape(-1)[:0]
    if spec.local_runs is not None:
        permuted_whole = call_on_stream(generator.device, whole.reshape(-1).take, order)
        local = take_copy(permuted_whole.reshape(shape), spec.local_runs, generator.device)
    return generator.place(DTensor(local, spec))


def _shard_whole(generator: _MeshGenerator, whole: Array) -> DTensor:
    """Return the tensor of an array that every rank has drawn whole."""
    spec = generator.result_spec(whole.shape, whole.dtype)
    if spec.local_runs is None:
        return DTensor(whole.reshape(-1)[:0], spec)
    return DTensor(take_copy(whole, spec.local_runs, generator.device), spec)


def _placements_of(x: object, source: DTensor) -> tuple[Placement, ...]:
    return (x if isinstance(x, DTensor) else source).placements
