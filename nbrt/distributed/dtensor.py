"""`DTensor`: an array whose parts are distributed over the ranks of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import checked_shape
from nbrt.distributed.communicators.checks import MessageMemo
from nbrt.distributed.extensions import extension
from nbrt.distributed.mesh import checked_mesh, current_mesh
from nbrt.distributed.ops.arithmetic import ArrayMethods
from nbrt.distributed.placements import Replicate, checked_placements
from nbrt.distributed.process_group import world
from nbrt.distributed.replayable_ops import FromLocal, Redistribute, submit
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.typing import Array, ArrayLike, Shape

__all__ = ["DTensor"]


class DTensor(ArrayMethods):
    """An array whose parts are on the ranks of a mesh: NumPy arrays on cpu, CuPy arrays on cuda.

    `DTensor.from_local`, `distribute_tensor`, the factories and operations return tensors. A rank
    off the mesh may hold one too, with an empty part of shape (0,).

    Parameters
    ----------
    local : array
        The part of this rank, which the tensor shares.
    spec : DTensorSpec
        Mesh, placements, shape and dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import nbrt.distributed as dist
    >>> def half():
    ...     mesh = dist.init_device_mesh("cpu", (2,))
    ...     x = DTensor.from_local(np.full(2, dist.get_rank()), mesh, [dist.Shard(0)])
    ...     return x.shape, x.full_tensor()
    >>> dist.run(half, ranks=2)[0]
    ((4,), array([0, 0, 1, 1]))
    """

    # -- parts and the whole -----------------------------------------------------------------------

    @staticmethod
    def from_local(
        local: ArrayLike,
        device_mesh: DeviceMesh | None = None,
        placements: Placement | Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Shape | None = None,
    ) -> DTensor:
        """Return the tensor whose parts are the arrays of the ranks.

        An array on the device of the mesh (on cpu, any NumPy array) is not copied: the tensor
        shares its memory. Subclasses of `numpy.ndarray` are viewed as plain arrays.

        Parameters
        ----------
        local : array_like
            This rank's part.
        device_mesh : DeviceMesh, optional
            The ranks; the mesh of the innermost ``with mesh:`` by default.
        placements : sequence of Placement, optional
            The placement along each dimension of the mesh; replicated by default.
        run_check : bool
            Compare shapes, dtypes and bits of replicas between ranks, in one small collective.
        shape : int or tuple of int, optional
            The shape of the whole tensor. By default it follows from the shapes of all parts with
            `run_check`, else from the shape of this part, as if all were equal.

        Raises
        ------
        RankMismatchError
            With `run_check`, on every rank; it names the rank that differs.
        ArgumentError
            If the part does not have the shape that follows from the shape of the tensor.
        """
        mesh = current_mesh() if device_mesh is None else checked_mesh(device_mesh)
        array = on_device_of(mesh, local)
        whole = None if shape is None else checked_shape(shape)
        places = checked_placements(
            placements, mesh.ndim, array.ndim if whole is None else len(whole)
        )
        return DTensor(*submit(FromLocal(mesh, places, whole, bool(run_check)), array))

    def to_local(self) -> Array:
        """Return the part of this rank, not a copy."""
        return self._local

    def full_tensor(self) -> Array:
        """Return the whole on every rank, after at most one collective and one reduction.

        The result is a new array, or `to_local` if the tensor is replicated.
        """
        return self.redistribute(placements=[Replicate()] * self._spec.mesh.ndim)._local

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Placement | Sequence[Placement] | None = None,
    ) -> DTensor:
        """Return the same tensor under other placements, with the fewest collectives.

        `plan_redistribute` returns them and their traffic. The result shares a part that does not
        change.

        Parameters
        ----------
        device_mesh : DeviceMesh, optional
            The mesh of the tensor by default. Another mesh of the same world and device type takes
            one all_to_all over the ranks of both, which must all call this.
        placements : sequence of Placement
            The new placement along each dimension of the mesh.

        Raises
        ------
        PlacementError
            If a new placement is partial without a neutral element for the dtype.
        """
        spec = self._spec
        if placements is None:
            raise ArgumentTypeError("expected placements to redistribute to, got None")
        mesh = spec.mesh if device_mesh is None else checked_mesh(device_mesh)
        target = checked_placements(placements, mesh.ndim, spec.ndim)
        moved = None if mesh == spec.mesh else _checked_target(mesh, spec.mesh)
        if moved is None and target == spec.placements:
            return DTensor(self._local, spec)
        op = Redistribute(spec.mesh, spec.placements, target, spec.shape, spec.dtype, moved)
        return DTensor(*submit(op, self._local))

    def item(self) -> Any:
        """Return the value of a tensor of one element, as a Python scalar.

        All ranks of the mesh must call it, like `full_tensor`, and ``bool``, ``int``, ``float``,
        ``complex`` and formats such as ``f"{x:.3f}"``.
        """
        if self.size != 1:
            raise ArgumentError(
                f"expected a tensor of one element, got shape {self.shape}; use full_tensor()"
            )
        if self._spec.mesh.get_coordinate() is None:
            raise DistributedError(
                f"expected a rank of {self._spec.mesh}, got rank {self._spec.mesh.get_rank()}, "
                f"which holds nothing of the tensor"
            )
        return to_host(self.full_tensor(), copy=None).item()

    # -- as a Python object ------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise ArgumentTypeError(
            f"expected an array in one place, got a DTensor over {self._spec.mesh}; call "
            f"full_tensor() for the whole (a collective), or to_local() for this rank's part"
        )

    def __nbrt_random__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a function of `nbrt.random` for distributed tensors."""
        return extension("dispatch")(function, args, kwargs)

    def __repr__(self) -> str:
        places = ", ".join(str(each) for each in self.placements)
        # A fake array has no values to copy, and prints without its device.
        is_fake = hasattr(self._local, "layout")
        local = repr(self._local if is_fake else to_host(self._local, copy=None))
        return (
            f"DTensor({self.dtype}{list(self.shape)}, [{places}], {self._spec.mesh!r}, "
            f"local={local})"
        )

    def _repr_html_(self) -> str:
        return str(extension("dtensor_html")(self))

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "expected something that can be pickled, got a DTensor, whose parts live on the ranks "
            "of its mesh; send full_tensor(), or to_local() and make it again by from_local; "
            "copy() and copy.deepcopy() copy it"
        )

    def copy(self) -> DTensor:
        """Return a tensor with a copy of this rank's part."""
        return self.__deepcopy__({})

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> DTensor:
        """Return a tensor with a copy of this rank's part, without communication.

        If the part itself is copied too, as in a list of both, there is one copy.
        """
        if isinstance(memo, MessageMemo):
            self.__reduce__()
        known = memo.get(id(self._local))
        if known is None:
            device = self._spec.mesh.device
            known = memo[id(self._local)] = empty(self._local.shape, self.dtype, device=device)
            copy(known, self._local, stream=current_stream(device))
        return DTensor(known, self._spec)

    def __tensor_flatten__(self) -> tuple[list[str], DTensorSpec]:
        """Return the names of the inner arrays, and the spec; torch's protocol."""
        return ["_local"], self._spec

    @staticmethod
    def __tensor_unflatten__(
        inner_tensors: dict[str, Array],
        flatten_spec: DTensorSpec,
        outer_size: Any = None,  # torch's signature; the spec has them
        outer_stride: Any = None,
    ) -> DTensor:
        """Return the tensor of the results of `__tensor_flatten__`."""
        return DTensor(inner_tensors["_local"], flatten_spec)


def _checked_target(mesh: DeviceMesh, source: DeviceMesh) -> DeviceMesh:
    """Return the target mesh, if it has the world and the device type of the source."""
    if mesh.device_type != source.device_type:
        raise ArgumentError(
            f"expected a mesh of kind {source.device_type!r}, as the tensor's, got {mesh}; make "
            f"it there of full_tensor() by distribute_tensor"
        )
    if not mesh.communicator is source.communicator is world():
        raise ArgumentError(
            f"expected two meshes of the running rank's world, got {source} and {mesh}; make them "
            f"without communicator="
        )
    return mesh


def on_device_of(mesh: DeviceMesh, local: ArrayLike) -> Array:
    """Return an array on the device of a mesh, or any host array if the device addresses it."""
    array = asarray(local, copy=None)
    interface = current_stream(mesh.device).interface
    if interface.capabilities.host_addressable:
        if isinstance(array, np.ndarray):
            return np.asarray(array)  # subclasses have operations with other rules
        if interface.index_of(array) is not None:
            return array  # a fake host array
    return asarray(array, device=mesh.device)
