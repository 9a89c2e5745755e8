"""What the functions of `nbrt.random` do with distributed tensors: what a `MeshGenerator` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.ops.propagation import without
from nbrt.distributed.random.current import current_tracker
from nbrt.distributed.random.failures import failing_together
from nbrt.distributed.random.mesh_generator import MeshGenerator
from nbrt.distributed.random.ownership import own_generator
from nbrt.distributed.random.parameters import checked_tensor
from nbrt.distributed.spec import DTensorSpec
from nbrt.random import functions
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
    mesh = first._spec.mesh
    for tensor in tensors:
        checked_tensor(tensor, mesh)
    if function is functions.multinomial and first is (args[0] if args else kwargs["weights"]):
        return _multinomial(*args, **kwargs)
    if function in _LIKE:
        generator = MeshGenerator(mesh, first._spec.placements, kwargs.get("generator"))
    else:
        generator = _over(mesh, kwargs.get("generator"))
    inner = getattr(function, "__wrapped__", function)
    return inner(*args, **{**kwargs, "generator": generator})


def _over(mesh: DeviceMesh, generator: Generator | None) -> MeshGenerator:
    """Return ``MeshGenerator(mesh, None, generator)``, the one before if it is of that mesh.

    Whose a generator is, the region that is drawn in finds out in any case.
    """
    chosen = own_generator(mesh, None) if generator is None else generator
    last: MeshGenerator | None = getattr(chosen, "_drawing", None)
    if last is None or last._mesh is not mesh:
        last = MeshGenerator(mesh, None, chosen)
        last.plain._drawing = last
    return last


def _multinomial(
    weights: DTensor,
    num_samples: int,
    replacement: bool = False,
    *,
    device: DeviceLike = None,
    generator: Generator | None = None,
) -> DTensor:
    """Return the samples of each row where the row's weights are, which are not cut."""
    mesh = weights.device_mesh
    num_samples = checked_samples(weights.shape, num_samples, replacement)
    placements = without(weights.placements, [weights.ndim - 1])
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
