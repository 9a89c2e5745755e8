"""What the functions of `nbrt.random` do with distributed tensors: what a `MeshGenerator` does."""

from __future__ import annotations

from inspect import unwrap
from typing import TYPE_CHECKING, Any

from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.random.generator_checks import checked_rank_generator, failing_together
from nbrt.distributed.random.mesh_draws import MeshDraws
from nbrt.distributed.random.mesh_generator import MeshGenerator
from nbrt.distributed.random.parameters import checked_tensor, is_number, number
from nbrt.distributed.random.state_tracker import current_tracker
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentTypeError
from nbrt.random import functions
from nbrt.random.inplace import exponential_, random_
from nbrt.random.sampling import checked_samples, multinomial_indices

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator
    from nbrt.typing import DeviceLike

__all__ = ["dispatch"]

_LIKE = (functions.rand_like, functions.randn_like, functions.randint_like)


def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function of `nbrt.random` makes of arguments some of which are DTensors.

    The result has the placements of the tensor that is filled, of that whose shape it has, or of
    the first one.

    Raises
    ------
    PlacementError
        If a tensor is partial.
    """
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, DTensor)]
    first = tensors[0]
    spec = first._spec
    own = _OWN.get(function)
    if own is not None:
        return own(spec.mesh, *args, **kwargs)
    generator = kwargs.get("generator")
    if function in _LIKE:
        checked_tensor(first, spec.mesh)
        generator = MeshGenerator(spec.mesh, spec.placements, generator)
    elif spec.shape and len(tensors) == 1:
        generator = _over(spec.mesh, generator)
    else:  # there may be numbers among the parameters, for which to look takes its time
        generator = MeshGenerator(spec.mesh, None, generator)
    inner = getattr(function, "__wrapped__", function)
    return inner(*args, **{**kwargs, "generator": generator})


def _over(mesh: DeviceMesh, generator: Generator | None) -> MeshDraws:
    """Return ``MeshDraws(mesh, None, generator)``, the one before if it is of that mesh.

    Whose a generator is, the region that is drawn in finds out in any case.
    """
    chosen = checked_rank_generator(mesh, None) if generator is None else generator
    last: MeshDraws | None = getattr(chosen, "_mesh_generator", None)
    if last is None or last._mesh is not mesh:
        last = MeshDraws(mesh, None, chosen)
        last.plain._mesh_generator = last
    return last


def _exponential(
    mesh: DeviceMesh, array: Any, lambd: Any = 1.0, *, generator: Generator | None = None
) -> DTensor:
    rate = number(lambd, mesh, 1.0)
    result: DTensor = unwrap(exponential_)(array, rate, generator=_over(mesh, generator))
    return result


def _integers(
    mesh: DeviceMesh,
    array: Any,
    low: Any = None,
    high: Any = None,
    *,
    generator: Generator | None = None,
) -> DTensor:
    drawing = _over(mesh, generator)
    first, last = (0, low) if high is None else (low, high)
    if is_number(first) or is_number(last):
        result: DTensor = drawing.fill_integers(array, first, last)
    else:
        result = unwrap(random_)(array, low, high, generator=drawing)
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
    """Return the samples of each row where the row's weights are, which are not cut."""
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
    plain = MeshGenerator(mesh, None, chosen).plain
    # A rank may have wrong weights, and others fine ones.
    region = current_tracker().distribute_region(drawn, plain)
    with region as part, failing_together(mesh):
        if rows._local.size:
            local = multinomial_indices(part, rows._local, num_samples, replacement)
        else:
            # No rows, but the generator must move as it does where there are some.
            draw = part.random if replacement else part.standard_exponential
            local = draw(drawn.local_shape).astype("int64").reshape(result.local_shape)
    return DTensor(local, result)


_OWN: dict[Callable[..., Any], Callable[..., Any]] = {
    exponential_: _exponential,
    random_: _integers,
    functions.multinomial: _multinomial,
}
