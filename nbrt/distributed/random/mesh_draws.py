"""`MeshDraws`: draws of distributed tensors, each rank its part."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.mesh import DeviceMesh, checked_mesh, current_mesh
from nbrt.distributed.ops.propagation import without
from nbrt.distributed.placements import Placement
from nbrt.distributed.random.current import current_tracker
from nbrt.distributed.random.failures import failing_together
from nbrt.distributed.random.ownership import own_generator
from nbrt.distributed.random.parameters import checked_tensor, cut_copy, local_parameter
from nbrt.distributed.spec import DTensorSpec, spec_of
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.random.arguments import integer, is_array, vector
from nbrt.random.generator import Generator
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.new_array import checked_shape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from nbrt.typing import Array, ArrayLike, DTypeLike, Shape

__all__ = ["MeshDraws"]

_NOTHING: AbstractContextManager[None] = nullcontext()
_NUMBERS = frozenset([float, int])
_VECTORS = ("dirichlet", "multinomial", "multivariate_hypergeometric")


class MeshDraws(Generator):
    """Draws of elements and of vectors; see `MeshGenerator`, which adds what reorders."""

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
        self._plain = own_generator(self._mesh, generator)
        fresh: dict[str, Any] = {"_kinds": {}, "_drawing": None}
        self.__dict__.update(self._plain.__dict__ | self.__dict__ | fresh)

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
        shape = self._shape_of(size, parameters, out)
        spec = self._spec(shape, dtype, out, *parameters)
        is_vector = distribution in _VECTORS
        rows = _whole_rows(spec) if is_vector else spec
        own, together = parameters, _NOTHING
        if not _NUMBERS.issuperset(map(type, parameters)):
            own = tuple(local_parameter(each, rows) for each in parameters)
            if any(map(is_array, parameters)):  # of which some ranks may have wrong values
                together = failing_together(self._mesh)
                self._check_elsewhere(distribution, parameters, rows)
        into = None if out is None or rows is not spec else out._local
        with current_tracker().distribute_region(rows, self._plain) as part, together:
            size = rows.local_shape if into is None else None
            local = part._draw(distribution, own, size, rows.dtype, into)
        if rows is not spec:
            local = _columns(local, spec)
        return self._result(local, spec, out)

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

        Bounds that are distributed tensors are gathered: their ranges are checked as a whole.
        """
        if isinstance(low, DTensor) or isinstance(high, DTensor):
            first, last = (0, low) if high is None else (low, high)
            bounds = _checked_bound("low", first), _checked_bound("high", last)
            size = self._shape_of(size, bounds, out)
            if self._mesh.get_coordinate() is None:
                # Nothing is drawn here, and all ranges of elements take as many words.
                low, high = np.broadcast_to(0, self._shape_of(None, bounds, None)), 1
            else:
                low, high = map(self._gathered, bounds)
        return super().integers(low, high, size, dtype, endpoint, out)

    def fill_integers(self, out: Any, low: int | None = None, high: int | None = None) -> Any:
        """Fill a distributed tensor with integers of [low, high); see `nbrt.Generator`."""
        if not isinstance(out, DTensor):
            raise ArgumentTypeError(f"expected out to be a DTensor, got {type(out).__name__}")
        spec = self._spec(out.shape, out.dtype, out)
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
            x = asarray(x, device=self.device)
            spec = self._spec(x.shape, x.dtype)
        values = local_parameter(x, spec)
        with current_tracker().distribute_region(spec, self._plain) as part:
            result, mask = part.dropout(values, p, training)
        return DTensor(result, spec), DTensor(mask, spec.replaced(dtype=mask.dtype))

    def bytes(self, length: int) -> bytes:
        """Return random bytes, the same on all ranks."""
        return own_generator(self._mesh, self._plain).bytes(length)

    def _check_elsewhere(
        self, distribution: str, parameters: tuple[Any, ...], spec: DTensorSpec
    ) -> None:
        """Off the mesh, refuse the arrays that its ranks refuse: by a draw of no elements.

        What tensors hold is known on the mesh only.
        """
        is_known = not any(isinstance(each, DTensor) for each in parameters)
        if spec.local_runs is None and is_known:
            self._plain._draw(distribution, parameters, (0, *spec.shape), spec.dtype)

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
                part._centre_and_factor(mean, cov, check_valid, tol, method)
                local = part.standard_normal(rows.local_shape)
            else:
                lengths = rows.local_shape[:-1]
                local = part.multivariate_normal(
                    mean, cov, lengths, check_valid, tol, method=method
                )
        return self._result(local if rows is spec else _columns(local, spec), spec, None)

    # -- shapes and placements ---------------------------------------------------------------------

    def _shape_of(
        self, size: Shape | None, parameters: tuple[Any, ...], out: Any
    ) -> tuple[int, ...]:
        if out is None:
            if size is not None:
                return checked_shape(size)
            shapes = (x.shape if isinstance(x, DTensor) else np.shape(x) for x in parameters)
            whole = [np.broadcast_to(0, shape) for shape in shapes]
            return self._shape(None, tuple(whole))
        if not isinstance(out, DTensor):
            raise ArgumentTypeError(f"expected out to be a DTensor, got {type(out).__name__}")
        shape = out.shape if size is None else checked_shape(size)
        if shape != out.shape:
            raise ArgumentError(f"expected out of shape {shape}, got {out.shape}; leave size out")
        return out.shape

    def _spec(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], out: Any = None, *others: Any
    ) -> DTensorSpec:
        """Return what a draw makes: `out`; else as the generator, or the first tensor, says."""
        if out is not None:
            found: DTensorSpec = checked_tensor(out, self._mesh)._spec
            if found.dtype != dtype:
                raise ArgumentTypeError(f"expected out of dtype {dtype}, got {found.dtype}")
            return found
        placements = self._placements if shape else None
        if self._placements is None:
            alike = [x for x in others if isinstance(x, DTensor) and x.shape == shape]
            placements = checked_tensor(alike[0], self._mesh).placements if alike else None
        return spec_of(self._mesh, placements, shape, dtype)

    def _result(self, local: Any, spec: DTensorSpec, out: Any) -> DTensor:
        if out is None:
            return DTensor(local, spec)
        if local is not out._local:
            copy(out._local, local)
        found: DTensor = out
        return found

    def _gathered(self, value: Any) -> Any:
        """Return the same array on all ranks of the mesh."""
        if not isinstance(value, DTensor):
            return value
        return checked_tensor(value, self._mesh).full_tensor()


def _checked_bound(name: str, value: Any) -> Any:
    """Return a bound of integers whose shape all ranks know, and whose value if it has none."""
    if not isinstance(value, DTensor):
        return integer(name, value)
    if not value.ndim:
        raise ArgumentTypeError(
            f"expected {name} to be an integer or an array of them, got a DTensor without "
            f"dimensions; pass its value, {name}.item()"
        )
    return value


def _whole_rows(spec: DTensorSpec) -> DTensorSpec:
    """Return the spec with its last axis, along which vectors lie, uncut: itself if it is."""
    placements = without(spec.placements, [spec.ndim - 1])
    return spec if placements == spec.placements else spec.replaced(placements=placements)


def _columns(local: Array, spec: DTensorSpec) -> Array:
    """Return, of whole rows that a rank has drawn, its columns."""
    if spec.local_runs is None:
        return local
    return cut_copy(local, spec.local_runs[-1:], spec.mesh.device, first=spec.ndim - 1)
