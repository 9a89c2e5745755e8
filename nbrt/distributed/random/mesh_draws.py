"""`MeshDraws`: draws of distributed tensors, each rank its part."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from nbrt._internal.checks import checked_shape
from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.mesh import DeviceMesh, checked_mesh, current_mesh
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.placements import Placement
from nbrt.distributed.random.generator_checks import checked_rank_generator, failing_together
from nbrt.distributed.random.parameters import (
    Elsewhere,
    checked_tensor,
    cut_copy,
    is_number,
    known_number,
    known_range,
    local_parameter,
)
from nbrt.distributed.random.state_tracker import current_tracker
from nbrt.distributed.spec import DTensorSpec, spec_of
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.random.arguments import (
    checked_flag,
    common_shape,
    dtype_name,
    integer,
    integer_dtype,
    is_array,
    vector,
)
from nbrt.random.generator import Generator
from nbrt.random.multivariate import mean_and_factor
from nbrt.runtime.array import asarray, copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from nbrt.typing import Array, ArrayLike, DTypeLike, Shape

__all__ = ["MeshDraws"]

_NUMBERS = frozenset([float, int])
_VECTORS = frozenset(["dirichlet", "multinomial", "multivariate_hypergeometric"])


class MeshDraws(Generator):
    """Draws of elements and of vectors; see `MeshGenerator`.

    That adds what reorders, and tensors without dimensions as parameters of the draws.
    """

    def __init__(
        self,
        mesh: DeviceMesh | None = None,
        placements: Placement | Sequence[Placement] | None = None,
        generator: Generator | None = None,
    ) -> None:
        self._mesh = current_mesh() if mesh is None else checked_mesh(mesh)
        self._placements: Placement | tuple[Placement, ...] | None = None
        if placements is None or isinstance(placements, Placement):
            self._placements = placements
        elif isinstance(placements, (tuple, list)) and all(
            isinstance(each, Placement) for each in placements
        ):
            self._placements = tuple(placements)
        else:
            raise ArgumentTypeError(f"expected a sequence of placements, got {placements!r}")
        if isinstance(generator, MeshDraws):
            generator = generator.plain
        self._plain = checked_rank_generator(self._mesh, generator)
        fresh: dict[str, Any] = {"_shards": {}, "_mesh_generator": None}
        self.__dict__ = {**self._plain.__dict__, **self.__dict__, **fresh}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._mesh!r}, {self._placements!r}, {self._plain!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._mesh, self._placements, self._plain)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The ranks."""
        return self._mesh

    @property
    def plain(self) -> Generator:
        """The generator of the same state whose draws are this rank's alone."""
        return self._plain

    def clone(self) -> Self:
        """Return a generator of its own that continues from the same state, also in spawning."""
        return type(self)(self._mesh, self._placements, self._plain.clone())

    def spawn(self, n_children: int) -> list[Self]:
        """Return generators of independent streams; see `nbrt.Generator.spawn`."""
        children = self._plain.spawn(n_children)
        return [type(self)(self._mesh, self._placements, child) for child in children]

    def shard(self, shape: Any, region: Any) -> NoReturn:  # noqa: ARG002
        """Refuse: it draws parts by itself."""
        raise NotSupportedError(
            "expected a generator of one rank, got one that draws each rank its part already; use "
            "its plain.shard(shape, region)"
        )

    # -- elements ----------------------------------------------------------------------------------

    def _draw(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None = None,
    ) -> Any:
        """Return a distributed tensor of which each rank has drawn its part."""
        if out is None:
            spec = self._spec(self._shape_of(size, parameters), dtype, *parameters)
        else:
            spec = self._spec_of(out, size, dtype)
        rows = _whole_rows(spec) if distribution in _VECTORS else spec
        are_numbers = _NUMBERS.issuperset(map(type, parameters))
        own = parameters
        if not are_numbers:
            own = tuple(local_parameter(each, rows) for each in parameters)
        into = None if out is None or rows is not spec else out._local
        with current_tracker().distribute_region(rows, self._plain) as part:
            draw = part._draw
            if not are_numbers:
                draw = self._careful(part, distribution, parameters, rows)
            shape = rows.local_shape if into is None else None
            local = draw(distribution, own, shape, rows.dtype, into)
        if rows is not spec:
            local = _columns(local, spec)
        if out is None:
            return DTensor(local, spec)
        if local is not out._local:
            copy(out._local, local)
        return out

    def integers(
        self,
        low: ArrayLike,
        high: ArrayLike | None = None,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,  # NumPy's signature
        out: Array | None = None,
    ) -> Any:
        """Return integers in [low, high); see `nbrt.Generator.integers`.

        Bounds that are distributed tensors are gathered: their ranges are checked as a whole. If
        they have no dimensions, and there are ranks off the mesh, all values of their dtypes must
        be ranges of as many words: for int64 and uint64, bounds of dtypes of up to 32 bits.
        """
        if isinstance(low, DTensor) or isinstance(high, DTensor):
            first, last = (0, low) if high is None else (low, high)
            bounds = _checked_bound("low", first), _checked_bound("high", last)
            if not any(map(is_array, bounds)):
                shape = self._shape_of(size, bounds) if out is None else _shape(out)
                is_closed = checked_flag("endpoint", endpoint)
                low, high = self._range(*bounds, integer_dtype(dtype), is_closed, shape)
            elif self._mesh.get_coordinate() is None:
                # Nothing is drawn here, and all ranges of elements take as many words.
                low, high = np.broadcast_to(0, self._shape_of(None, bounds)), 1
            else:
                low, high = map(self._gathered, bounds)
        return super().integers(low, high, size, dtype, endpoint, out)

    def _range(
        self, low: Any, high: Any, dtype: np.dtype[Any], endpoint: bool, shape: tuple[int, ...]
    ) -> tuple[Any, Any]:
        """Return bounds of integers that are numbers; off the mesh, others of as many words."""
        kind, count = dtype_name(dtype), math.prod(shape)
        first, last = (0, 1) if kind == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)

        def words(least: int, most: int) -> int:
            span = max(least, int(first)), min(most + endpoint, int(last) + 1)
            return self.layout.increment("integers", kind, count, span) if count else 0

        return known_range(low, high, self._mesh, words)

    def fill_integers(self, out: Any, low: int | None = None, high: int | None = None) -> Any:
        """Fill a distributed tensor with integers of [low, high); see `nbrt.Generator`."""
        if not isinstance(out, DTensor):
            raise ArgumentTypeError(f"expected out to be a DTensor, got {type(out).__name__}")
        spec = checked_tensor(out, self._mesh)._spec
        if is_number(low) or is_number(high):
            low, high = _checked_bound("low", low), _checked_bound("high", high)
            if is_array(low) or is_array(high):
                raise ArgumentError(
                    f"expected low and high as one integer each, got {low} and {high}"
                )
            kind = spec.dtype if spec.dtype.kind in "iub" else np.dtype(np.int64)
            low, high = self._range(low, high, kind, False, spec.shape)
        with current_tracker().distribute_region(spec, self._plain) as part:
            part.fill_integers(out._local, low, high)
        return out

    def dropout(self, x: Any, p: float = 0.5, training: bool = True) -> tuple[DTensor, DTensor]:
        """Zero elements with probability `p`; see `nbrt.Generator.dropout`.

        Returns
        -------
        result, mask : DTensor
            With the placements of `x`; if that is an array, which then is the same on all ranks,
            with those of the generator.
        """
        if isinstance(x, DTensor):
            spec = checked_tensor(x, self._mesh)._spec
        else:
            x = asarray(x, device=self.device, copy=None)
            spec = self._spec(x.shape, x.dtype)
        values = local_parameter(x, spec)
        p = known_number("p", p, self._mesh)
        with current_tracker().distribute_region(spec, self._plain) as part:
            result, mask = part.dropout(values, p, training)
        return DTensor(result, spec), DTensor(mask, spec.replaced(dtype=mask.dtype))

    def bytes(self, length: int) -> bytes:
        """Return random bytes, the same on all ranks."""
        return checked_rank_generator(self._mesh, self._plain).bytes(length)

    def _careful(
        self, part: Generator, distribution: str, parameters: tuple[Any, ...], spec: DTensorSpec
    ) -> Callable[..., Any]:
        """Return how a part is drawn by parameters that are not all numbers of this rank."""
        if any(isinstance(each, Elsewhere) for each in parameters):
            return functools.partial(self._move_on, part)
        if not any(map(is_array, parameters)):
            return part._draw
        # What tensors hold is known on the mesh only.
        if spec.local_runs is None and not any(isinstance(each, DTensor) for each in parameters):
            # Off the mesh, refuse the arrays that its ranks refuse: by a draw of no elements.
            self._plain._draw(distribution, parameters, (0, *spec.shape), spec.dtype)
        # Some ranks may have wrong values.
        return failing_together(self._mesh)(part._draw)

    def _move_on(
        self,
        part: Generator,
        distribution: str,
        parameters: tuple[Any, ...],
        size: tuple[int, ...] | None,
        dtype: np.dtype[Any],
        out: Any,
    ) -> Any:
        """Draw nothing, as a rank off the mesh by numbers that it does not know."""
        nothing = self._plain._draw(distribution, parameters, size, dtype, out)
        numbers = (0.0 if isinstance(each, Elsewhere) else each for each in parameters)
        _, words = part._filler.plan(distribution, dtype, 0, tuple(numbers))
        part._position.reserve(words)
        return nothing

    # -- vectors -----------------------------------------------------------------------------------

    def multivariate_normal(
        self,
        mean: ArrayLike,
        cov: ArrayLike,
        size: Shape | None = None,
        check_valid: Literal["warn", "raise", "ignore"] = "warn",
        tol: float = 1e-8,
        *,
        method: Literal["svd", "eigh", "cholesky"] = "svd",
    ) -> Any:
        """Return normal vectors; see `nbrt.Generator.multivariate_normal`."""
        leading = () if size is None else checked_shape(size)
        spec = self._spec((*leading, vector("mean", mean).size), np.dtype(np.float64))
        rows = _whole_rows(spec)
        with current_tracker().distribute_region(rows, self._plain) as part:
            if rows.local_runs is None:
                mean_and_factor(mean, cov, check_valid, tol, method)
                local = part.standard_normal(rows.local_shape)
            else:
                lengths = rows.local_shape[:-1]
                local = part.multivariate_normal(
                    mean, cov, lengths, check_valid, tol, method=method
                )
        return DTensor(local if rows is spec else _columns(local, spec), spec)

    # -- shapes and placements ---------------------------------------------------------------------

    def _shape_of(self, size: Shape | None, parameters: tuple[Any, ...]) -> tuple[int, ...]:
        if size is not None:
            return checked_shape(size)
        return common_shape([_shape(each) for each in parameters]) if parameters else ()

    def _spec_of(self, out: Any, size: Shape | None, dtype: np.dtype[Any]) -> DTensorSpec:
        """Return what a draw fills, if that is what it makes."""
        if not isinstance(out, DTensor):
            raise ArgumentTypeError(f"expected out to be a DTensor, got {type(out).__name__}")
        spec = checked_tensor(out, self._mesh)._spec
        if size is not None and checked_shape(size) != spec.shape:
            raise ArgumentError(
                f"expected out of shape {checked_shape(size)}, got {spec.shape}; leave size out"
            )
        if spec.dtype != dtype:
            raise ArgumentTypeError(f"expected out of dtype {dtype}, got {spec.dtype}")
        return spec

    def _spec(self, shape: tuple[int, ...], dtype: np.dtype[Any], *others: Any) -> DTensorSpec:
        """Return what a draw makes: placed as the generator, or the first tensor, says."""
        placements = self._placements if shape else None
        if self._placements is None:
            alike = [x for x in others if isinstance(x, DTensor) and x.shape == shape]
            placements = checked_tensor(alike[0], self._mesh).placements if alike else None
        return spec_of(self._mesh, placements, shape, dtype)

    def _gathered(self, value: Any) -> Any:
        """Return the same array on all ranks of the mesh."""
        if not isinstance(value, DTensor):
            return value
        return checked_tensor(value, self._mesh).full_tensor()


def _checked_bound(name: str, value: Any) -> Any:
    """Return a bound of integers: an int, or the array or the tensor that it is."""
    is_known = isinstance(value, DTensor) and value.dtype.kind in "iu"
    return value if is_known else integer(name, value)


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, Elsewhere):
        return ()
    return value.shape if isinstance(value, DTensor) else np.shape(value)


def _whole_rows(spec: DTensorSpec) -> DTensorSpec:
    """Return the spec with its last axis, along which vectors lie, uncut: itself if it is."""
    placements = replicate_dims(spec.placements, [spec.ndim - 1])
    return spec if placements == spec.placements else spec.replaced(placements=placements)


def _columns(local: Array, spec: DTensorSpec) -> Array:
    """Return, of whole rows that a rank has drawn, its columns."""
    if spec.local_runs is None:
        return local
    return cut_copy(local, spec.local_runs[-1:], spec.mesh.device, first=spec.ndim - 1)
