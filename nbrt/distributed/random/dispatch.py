"""Functions of `nbrt.random` with distributed tensors among their arguments."""

from __future__ import annotations

from inspect import unwrap
from typing import TYPE_CHECKING, Any

from nbrt.distributed.consistency import fail_together
from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.random.mesh_generator import BaseMeshGenerator, MeshGenerator
from nbrt.distributed.random.parameters import checked_tensor, is_scalar_tensor, scalar_value
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentTypeError
from nbrt.random import functions
from nbrt.random.defaults import default_generator
from nbrt.random.functions import exponential_, random_
from nbrt.random.sampling import checked_samples, multinomial_indices

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator
    from nbrt.typing import DeviceLike

__all__ = ["dispatch"]

_LIKE = (functions.rand_like, functions.randn_like, functions.randint_like)


def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function of `nbrt.random` for arguments with DTensors among them.

    The result has the placements of the tensor that is filled, of the tensor of the same shape, or
    of the first tensor.

    Raises
    ------
    PlacementError
        If a tensor is partial.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, DTensor)]
    first = tensors[0]
    spec = first._spec
    special = _SPECIAL.get(function)
    if special is not None:
        return special(spec.mesh, *args, **kwargs)
    generator = kwargs.get("generator")
    if function in _LIKE:
        checked_tensor(first, spec.mesh)
        generator = MeshGenerator(spec.mesh, spec.placements, generator)
    elif spec.shape and len(tensors) == 1:
        generator = _mesh_generator(spec.mesh, generator)
    else:  # parameters may be scalar tensors, which take longer
        generator = MeshGenerator(spec.mesh, None, generator)
    inner = getattr(function, "__wrapped__", function)
    return inner(*args, **{**kwargs, "generator": generator})


def _mesh_generator(mesh: DeviceMesh, generator: Generator | None) -> BaseMeshGenerator:
    """Return a mesh generator over a generator, the previous one if it is of that mesh."""
    if generator is None:
        generator = default_generator(mesh.device)
        mesh.communicator.check_rank(generator, is_default=True)
    last: BaseMeshGenerator | None = getattr(generator, "_mesh_generator", None)
    if last is None or last._mesh is not mesh:
        last = BaseMeshGenerator(mesh, None, generator)
        last.plain._mesh_generator = last
    return last


def _exponential(
    mesh: DeviceMesh, array: Any, lambd: Any = 1.0, *, generator: Generator | None = None
) -> DTensor:
    rate = scalar_value(lambd, mesh, 1.0)
    fill: Any = unwrap(exponential_)
    result: DTensor = fill(array, rate, generator=_mesh_generator(mesh, generator))
    return result


def _integers(
    mesh: DeviceMesh,
    array: Any,
    low: Any = None,
    high: Any = None,
    *,
    generator: Generator | None = None,
) -> DTensor:
    chosen = _mesh_generator(mesh, generator)
    first, last = (0, low) if high is None else (low, high)
    if is_scalar_tensor(first) or is_scalar_tensor(last):
        result: DTensor = chosen.fill_integers(array, first, last)
    else:
        fill: Any = unwrap(random_)
        result = fill(array, low, high, generator=chosen)
    return result


def _multinomial(
    mesh: DeviceMesh,
    weights: DTensor,
    num_samples: int,
    replacement: bool = False,
    *,
    device: DeviceLike = None,
    generator: Generator | None = None,
) -> DTensor:
    """Return samples of each row of weights, drawn on the ranks that hold the row."""
    if not isinstance(weights, DTensor):
        raise ArgumentTypeError(
            f"expected weights to be the DTensor among the arguments, got {type(weights).__name__}"
        )
    checked_tensor(weights, mesh)
    num_samples = checked_samples(weights.shape, num_samples, replacement)
    placements = replicate_dims(weights.placements, [weights.ndim - 1])
    rows = weights.redistribute(placements=placements)
    shape = (*weights.shape[:-1], num_samples)
    result = DTensorSpec(mesh, placements, shape, "int64")
    drawn = result if replacement else rows._spec
    chosen = functions.generator_for(generator, mesh.device if device is None else device)
    # Weights may be wrong on some ranks only.
    region = MeshGenerator(mesh, None, chosen).region(drawn)
    with region as part, fail_together(mesh):
        if rows._local.size:
            local = multinomial_indices(part, rows._local, num_samples, replacement)
        else:  # no rows here, but the state moves as on the other ranks
            draw = part.random if replacement else part.standard_exponential
            local = draw(drawn.local_shape).astype("int64").reshape(result.local_shape)
    return DTensor(local, result)


_SPECIAL: dict[Callable[..., Any], Callable[..., Any]] = {
    exponential_: _exponential,
    random_: _integers,
    functions.multinomial: _multinomial,
}
