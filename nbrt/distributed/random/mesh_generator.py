"""`MeshGenerator`: the methods of a generator for distributed tensors."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.ops.propagation import on_other_dim, replicate_dims, shard_dim
from nbrt.distributed.random.generator_checks import checked_rank_generator
from nbrt.distributed.random.mesh_draws import MeshDraws
from nbrt.distributed.random.parameters import (
    checked_tensor,
    cut,
    cut_copy,
    known_number,
    taking_numbers,
)
from nbrt.distributed.random.state_tracker import current_tracker, put_back_on_failure
from nbrt.distributed.spec import DTensorSpec
from nbrt.random.arguments import integer, is_array, rectangular
from nbrt.random.array_filler import call_on_stream
from nbrt.random.sampling import checked_axis
from nbrt.runtime.array import asarray, copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.placements import Placement
    from nbrt.typing import Array, ArrayLike, Shape

__all__ = ["MeshGenerator"]

_Method = TypeVar("_Method", bound="Callable[..., DTensor]")


def _put_back_on_failure(method: _Method) -> _Method:
    """Let a method that draws before it is through leave the state as it was if it raises."""

    @functools.wraps(method)
    def whole_or_nothing(self: MeshGenerator, *args: Any, **kwargs: Any) -> DTensor:
        with put_back_on_failure(checked_rank_generator(self._mesh, self._plain)):
            return method(self, *args, **kwargs)

    return cast("_Method", whole_or_nothing)


@taking_numbers
class MeshGenerator(MeshDraws):
    """A generator over a mesh: the methods of `nbrt.Generator`, with sizes of whole tensors.

    Every method returns a `DTensor` whose values are those of the single-device draw, bit for bit,
    under the default tracker; the state moves as there, too. All ranks must call the same methods
    with equal arguments, also those off the mesh, and start from equal states (see
    `nbrt.distributed.manual_seed`). Parameters may be numbers, distributed tensors, or arrays that
    are the same on all ranks; a tensor without dimensions is a number. A draw that fails on a rank,
    of values of a parameter that only its part holds, fails on all ranks of the mesh and moves no
    state if ranks are threads or ``NBRT_DISTRIBUTED_CHECK=1``; else it moves the state on the other
    ranks alone.

    Parameters
    ----------
    mesh : DeviceMesh, optional
        The ranks; the innermost ``with mesh:`` by default.
    placements : Placement or sequence of Placement, optional
        Of the results. By default those of `out`, or of the first tensor among the arguments that
        has the result's shape; else all replicated. A result of no dimension is replicated.
    generator : Generator, optional
        Whose state is drawn from; by default the default one of this rank's device.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> def draw():
    ...     mesh = dist.init_device_mesh("cpu", (4,))
    ...     generator = dist.MeshGenerator(mesh, [dist.Shard(0)], nbrt.Generator(7))
    ...     return generator.normal(size=10).to_local()
    >>> parts = dist.run(draw, ranks=4)
    >>> [part.size for part in parts]
    [3, 3, 3, 1]
    >>> whole = nbrt.Generator(7).normal(size=10)
    >>> [float(x) for part in parts for x in part] == whole.tolist()
    True
    """

    @_put_back_on_failure
    def permutation(self, x: int | ArrayLike, axis: int = 0) -> DTensor:
        """Return a shuffled copy along an axis, or of ``arange(x)``; see `nbrt.Generator`.

        A distributed tensor is gathered along that axis only, and keeps its placements unless the
        generator has some.
        """
        if not is_array(x):
            order = self._plain.permutation(integer("x", known_number("x", x, self._mesh)))
            return self._cut_from(order)
        source = self._source(x, axis)
        order = self._plain.permutation(source.shape[axis])
        return self._taken(source, order, axis, source.shape, _placements_of(x, source))

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Shuffle a distributed tensor in place along an axis; other things, the same on all ranks.

        See `nbrt.Generator.shuffle`.
        """
        if not isinstance(x, DTensor) or not x.ndim:
            checked_rank_generator(self._mesh, self._plain).shuffle(x, axis)
            return
        kept = MeshGenerator(self._mesh, x.placements, self._plain)
        copy(x._local, kept.permutation(x, axis)._local)

    @_put_back_on_failure
    def permuted(self, x: ArrayLike, *, axis: int | None = None, out: Any = None) -> DTensor:
        """Return a copy with each slice along an axis shuffled for itself; see `nbrt.Generator`."""
        if axis is None:
            result = self._all_permuted(x)
        else:
            source = self._source(x, axis)
            result = self._lines_permuted(source, axis, _placements_of(x, source))
        if out is None:
            return result
        spec = self._spec_of(out, result.shape, result.dtype)
        copy(out._local, result.redistribute(placements=spec.placements)._local)
        found: DTensor = out
        return found

    @_put_back_on_failure
    def choice(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> DTensor:
        """Return elements picked at random; see `nbrt.Generator.choice`.

        A distributed tensor is gathered along `axis` only. Every rank draws all picks.
        """
        if not is_array(a):
            a = known_number("a", a, self._mesh)
            picks = self._plain.choice(a, size, replace, p, 0, shuffle)
            return self._cut_from(asarray(picks, device=self.device, copy=None))
        source = self._source(a, axis)
        axis %= source.ndim
        picks = asarray(
            self._plain.choice(source.shape[axis], size, replace, p, 0, shuffle),
            device=self.device,
            copy=None,
        )
        shape = (*source.shape[:axis], *picks.shape, *source.shape[axis + 1 :])
        beyond = picks.ndim - 1
        placements = [
            on_other_dim(each, dim + beyond)
            if (dim := shard_dim(each)) is not None and dim > axis
            else each
            for each in source.placements
        ]
        return self._taken(source, picks, axis, shape, placements)

    # -- how they are made -------------------------------------------------------------------------

    def _source(self, x: Any, axis: int) -> DTensor:
        """Return a tensor with all of an axis on every rank that has some of it."""
        tensor = checked_tensor(x, self._mesh) if isinstance(x, DTensor) else self._copies(x)
        placements = replicate_dims(tensor.placements, [checked_axis(axis, tensor.ndim)])
        if placements == tensor.placements:
            return tensor
        return tensor.redistribute(placements=placements)

    def _copies(self, x: Any) -> DTensor:
        """Return the tensor of an array that all ranks have."""
        array = asarray(rectangular("x", x), device=self.device, copy=None)
        spec = DTensorSpec(self._mesh, None, array.shape, array.dtype)
        return DTensor(array.reshape(-1)[:0] if spec.local_runs is None else array, spec)

    def _taken(
        self,
        source: DTensor,
        picks: Array,
        axis: int,
        shape: tuple[int, ...],
        placements: tuple[Placement, ...] | list[Placement],
    ) -> DTensor:
        """Return ``source.take(picks, axis)``, with the generator's placements if it has some."""
        between = DTensorSpec(self._mesh, placements, shape, source.dtype)
        local = source._local
        if between.local_runs is not None:
            axis %= source.ndim
            own = cut(picks, between.local_runs[axis : axis + picks.ndim], self.device)
            local = call_on_stream(self.device, np.take, local, own, axis)
            local = asarray(local, device=self.device, copy=None)
        return self._placed(DTensor(local, between))

    def _lines_permuted(
        self, source: DTensor, axis: int, placements: tuple[Placement, ...]
    ) -> DTensor:
        spec = source._spec
        with current_tracker().distribute_region(spec, self._plain) as part:
            keys = part.random_bits(spec.local_shape, np.uint64)
        result = spec.replaced(placements=placements)
        local = source._local
        if spec.local_runs is not None and result.local_runs is not None:
            axis %= source.ndim
            order = call_on_stream(self.device, np.argsort, keys, axis, "stable")
            own = cut(order, result.local_runs[axis : axis + 1], self.device, first=axis)
            local = call_on_stream(self.device, np.take_along_axis, local, own, axis)
        return self._placed(DTensor(local, result))

    def _all_permuted(self, x: Any) -> DTensor:
        """Return all elements in random order: every rank needs them all."""
        placements = x.placements if isinstance(x, DTensor) else None
        if isinstance(x, DTensor):
            checked_tensor(x, self._mesh)
            shape, dtype = x.shape, x.dtype
            whole = x.full_tensor()
        else:
            whole = asarray(rectangular("x", x), device=self.device, copy=None)
            shape, dtype = whole.shape, whole.dtype
        order = self._plain.permutation(math.prod(shape))
        spec = DTensorSpec(self._mesh, placements, shape, dtype)
        local = whole.reshape(-1)[:0]
        if spec.local_runs is not None:
            taken = call_on_stream(self.device, whole.reshape(-1).take, order).reshape(shape)
            local = cut_copy(taken, spec.local_runs, self.device)
        return self._placed(DTensor(local, spec))

    def _cut_from(self, whole: Array) -> DTensor:
        """Return the tensor of what every rank has drawn all of."""
        spec = self._spec(whole.shape, whole.dtype)
        if spec.local_runs is None:
            return DTensor(whole.reshape(-1)[:0], spec)
        return DTensor(cut_copy(whole, spec.local_runs, self.device), spec)

    def _placed(self, tensor: DTensor) -> DTensor:
        if self._placements is None:
            return tensor
        wanted = self._spec(tensor.shape, tensor.dtype).placements
        if wanted == tensor.placements:
            return tensor
        return tensor.redistribute(placements=wanted)


def _placements_of(x: object, source: DTensor) -> tuple[Placement, ...]:
    return (x if isinstance(x, DTensor) else source).placements
