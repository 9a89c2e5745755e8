"""`DeviceMesh`: the ranks of a program in an array with named dimensions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt._internal import rank_context as context
from nbrt._internal.checks import as_int, checked_shape
from nbrt.backends.registry import get_interface_for_device
from nbrt.distributed.communicators.base import Communicator
from nbrt.distributed.extensions import extension
from nbrt.distributed.process_group import join_launched, world
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError
from nbrt.runtime.device import current_device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.typing import HostArray, Shape

__all__ = [
    "DeviceMesh",
    "checked_mesh",
    "current_mesh",
    "init_device_mesh",
    "mesh_of_this_rank",
    "remember",
]

_MAX_SHOWN = 64


class DeviceMesh:
    """Ranks in an n-dimensional array, as in ``torch.distributed.device_mesh``.

    Meshes of the same device type, ranks and names are equal. The constructor does not communicate:
    the members of a group create it when an operation first needs it.

    Parameters
    ----------
    device_type : str
        "cpu", "cuda" or another backend.
    mesh : array_like of int
        Ranks of the world, each once.
    mesh_dim_names : sequence of str, optional
        A name for each dimension; ``dim_names`` is an alias.
    communicator : Communicator, optional
        The communicator that numbers the ranks; the world by default.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> mesh = dist.DeviceMesh("cpu", [[0]], ("dp", "tp"))
    >>> mesh["tp"].shape, mesh.size(), mesh.get_coordinate()
    ((1,), 1, (0, 0))
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        mesh_dim_names: Sequence[str] | None = None,
        *,
        dim_names: Sequence[str] | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        names = _either(mesh_dim_names, dim_names)
        get_interface_for_device(device_type)  # raises for an unknown type
        if not isinstance(device_type, str) or ":" in device_type:
            raise ArgumentError(
                f"expected a type of device, such as 'cpu', got {device_type!r}; the index follows "
                f"from the rank"
            )
        everyone = world() if communicator is None else communicator
        if not hasattr(everyone, "ranks"):
            raise ArgumentTypeError(f"expected a communicator, got {communicator!r}")
        self._device_type = device_type
        self._ranks = _checked_ranks(mesh, everyone.size)
        self._names = _checked_names(names, self._ranks.ndim)
        self.communicator = everyone
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._specs: dict[Any, Any] = {}  # cache of `spec_of`
        self._root: DeviceMesh = self
        place = np.argwhere(self._ranks == everyone.rank)
        self._coordinate = tuple(int(one) for one in place[0]) if len(place) else None
        # Equality uses world ranks, not ranks of the given communicator.
        self._world_ranks = np.array(everyone.ranks, np.int64)[self._ranks]
        self._hash = hash((device_type, self.shape, self._world_ranks.tobytes(), self._names))

    # -- properties --------------------------------------------------------------------------------

    @property
    def device_type(self) -> str:
        """The type of the devices of the ranks."""
        return self._device_type

    @property
    def mesh(self) -> HostArray:
        """The ranks, as an int64 array; read only."""
        return self._ranks

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension."""
        return tuple(self._ranks.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._ranks.ndim

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Names of the dimensions, or None."""
        return self._names

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Return the number of ranks, in all or along a dimension."""
        return self._ranks.size if mesh_dim is None else self.shape[self.dim(mesh_dim)]

    def dim(self, mesh_dim: int | str) -> int:
        """Return the number of a dimension, given by number or name."""
        if isinstance(mesh_dim, str):
            if self._names is None or mesh_dim not in self._names:
                raise ArgumentError(
                    f"expected a dimension of a mesh with dimensions {self._names}, got "
                    f"{mesh_dim!r}"
                )
            return self._names.index(mesh_dim)
        number = as_int(mesh_dim)
        if number is None:
            raise ArgumentTypeError(f"expected a dimension by number or name, got {mesh_dim!r}")
        if not -self.ndim <= number < self.ndim:
            raise ArgumentError(f"expected a dimension of a {self.ndim}-d mesh, got {number}")
        return number % self.ndim

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return (
            self._hash == other._hash
            and self._device_type == other._device_type
            and self._names == other._names
            and np.array_equal(self._world_ranks, other._world_ranks)
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        names = "" if self._names is None else f", mesh_dim_names={self._names!r}"
        return f"DeviceMesh({self._device_type!r}, {_shown(self._ranks)}{names})"

    def _repr_html_(self) -> str:
        return str(extension("mesh_html")(self))

    # -- this rank ---------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device of this rank's arrays; raises if it is of another type."""
        device = self.communicator.device
        if device.kind != self._device_type:
            raise DistributedError(
                f"expected ranks on devices of type {self._device_type!r}, got rank "
                f"{self.get_rank()} on {device}; start them with "
                f"run(..., device_type={self._device_type!r}) or "
                f"init_process_group(device={self._device_type!r})"
            )
        return device

    def get_rank(self) -> int:
        """Return the number of this rank in `communicator`, by default the world."""
        return self.communicator.rank

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return the coordinate of this rank; None if it is not in the mesh."""
        return self._coordinate

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the coordinate of this rank along a dimension, optional for a 1-D mesh."""
        if self._coordinate is None:
            raise DistributedError(f"expected a rank of {self}, got rank {self.get_rank()}")
        if mesh_dim is None and self.ndim != 1:
            raise ArgumentError(f"expected a dimension of a {self.ndim}-d mesh, got None")
        return self._coordinate[self.dim(0 if mesh_dim is None else mesh_dim)]

    def get_group(self, mesh_dim: int | str | Sequence[int | str] | None = None) -> Communicator:
        """Return the communicator of the ranks along dimensions, including this rank.

        Parameters
        ----------
        mesh_dim : int, str or sequence of them, optional
            The dimensions in which ranks differ; None: all. Ranks are in row-major order.

        Raises
        ------
        DistributedError
            If this rank is not in the mesh.
        """
        dims = self._dims(mesh_dim)
        group = self._groups.get(dims)
        if group is None:
            group = self._groups[dims] = self._make_group(dims)
        return group

    def _dims(self, mesh_dim: int | str | Sequence[int | str] | None) -> tuple[int, ...]:
        if mesh_dim is None:
            return tuple(range(self.ndim))
        if isinstance(mesh_dim, (tuple, list)):
            return tuple(sorted({self.dim(one) for one in mesh_dim}))
        return (self.dim(cast("int | str", mesh_dim)),)

    def get_all_groups(self) -> list[Communicator]:
        """Return the communicator along each dimension."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def _make_group(self, dims: tuple[int, ...]) -> Communicator:
        if self._coordinate is None:
            raise DistributedError(
                f"expected a rank of {self}, got rank {self.get_rank()}; only members have groups"
            )
        index = tuple(
            slice(None) if dim in dims else place for dim, place in enumerate(self._coordinate)
        )
        members = [int(rank) for rank in np.ravel(self._ranks[index])]
        return self.communicator.group(members)

    # -- other meshes ------------------------------------------------------------------------------

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the sub-mesh of some dimensions, in that order, that holds this rank.

        A rank off the mesh gets the sub-mesh at index 0 of the other dimensions.
        """
        chosen = (names,) if isinstance(names, str) else names
        if not isinstance(chosen, tuple) or not all(isinstance(each, str) for each in chosen):
            raise ArgumentTypeError(f"expected names of dimensions of the mesh, got {names!r}")
        if self._names is None:
            raise ArgumentError(f"expected a mesh whose dimensions have names, got {self}")
        dims = [self.dim(name) for name in chosen]
        if not dims or len(set(dims)) != len(dims):
            raise ArgumentError(f"expected one or more dimensions, each once, got {chosen}")
        if tuple(dims) == tuple(range(self.ndim)):
            return self
        place = self._coordinate or (0,) * self.ndim
        index = tuple(slice(None) if dim in dims else at for dim, at in enumerate(place))
        order = [sorted(dims).index(dim) for dim in dims]
        return self._derived(self._ranks[index].transpose(order), chosen)

    def flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """Return a 1-D mesh of the same ranks, in row-major order.

        Parameters
        ----------
        mesh_dim_name : str, optional
            Name of its dimension; by default the names of this mesh joined by "_".
        """
        name = mesh_dim_name
        if name is None and self._names is not None:
            name = "_".join(self._names)
        return self._derived(self._ranks.reshape(-1), None if name is None else (name,))

    _flatten = flatten

    def _derived(self, ranks: HostArray, names: Sequence[str] | None) -> DeviceMesh:
        made = DeviceMesh(self._device_type, ranks, names, communicator=self.communicator)
        made._root = self._root
        return made

    @property
    def root(self) -> DeviceMesh:
        """The mesh of which this one is a sub-mesh, or itself."""
        return self._root

    @classmethod
    def from_group(
        cls,
        group: Communicator | Sequence[Communicator],
        device_type: str | None = None,
        mesh: Any = None,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> Self:
        """Return the mesh of existing groups.

        Parameters
        ----------
        group : Communicator, or a sequence of them
            The ranks, for a 1-D mesh; or, with `mesh`, one group along each of its dimensions.
        device_type : str, optional
            By default that of the device of the group.
        mesh : array_like of int, optional
            Ranks of the world; by default those of a single group.
        mesh_dim_names : sequence of str, optional
            A name for each dimension.
        """
        given: Any = group if isinstance(group, (tuple, list)) else [group]
        groups: list[Communicator] = list(given)
        for each in groups:
            if not isinstance(each, Communicator):
                raise ArgumentTypeError(f"expected communicators, got {each!r}")
        if not groups or (mesh is None and len(groups) != 1):
            raise ArgumentError(
                f"expected one group, or a group for each dimension and mesh, got {len(groups)}"
            )
        kind = groups[0].device.kind if device_type is None else device_type
        made = cls(kind, groups[0].ranks if mesh is None else mesh, mesh_dim_names)
        if len(groups) != made.ndim:
            raise ArgumentError(f"expected {made.ndim} groups for {made}, got {len(groups)}")
        if made._coordinate is not None:
            for dim, each in enumerate(groups):
                made._adopt(dim, each)
        return made

    def _adopt(self, dim: int, group: Communicator) -> None:
        assert self._coordinate is not None
        index: list[Any] = list(self._coordinate)
        index[dim] = slice(None)
        line = tuple(int(rank) for rank in self._ranks[tuple(index)])
        if group.ranks != line:
            raise ArgumentError(
                f"expected a group of ranks {line} along dimension {dim}, got {group.ranks}"
            )
        self._groups[(dim,)] = group

    # -- current mesh ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        context.mesh_stack.set((*context.mesh_stack.get(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        stack = context.mesh_stack.get()
        for at in reversed(range(len(stack))):
            if stack[at] is self:
                context.mesh_stack.set(stack[:at] + stack[at + 1 :])
                return

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceMesh, (self._device_type, self._world_ranks.tolist(), self._names)


def init_device_mesh(
    device_type: str | None = None,
    mesh_shape: Shape | None = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    dim_names: Sequence[str] | None = None,
) -> DeviceMesh:
    """Return a mesh of the first ranks of the world, in row-major order.

    In a process that mpiexec started, or torchrun for GPUs, this calls `init_process_group` first,
    as torch does, unless the process group exists.

    Parameters
    ----------
    device_type : str, optional
        By default the type of the current device.
    mesh_shape : int or sequence of int, optional
        Ranks along each dimension; all ranks in one dimension by default. Further ranks of the
        world are off the mesh.
    mesh_dim_names : sequence of str, optional
        A name for each dimension; ``dim_names`` is an alias.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> dist.run(lambda: dist.init_device_mesh("cpu", (2, 2)).get_coordinate(), ranks=4)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    kind = current_device().kind if device_type is None else device_type
    join_launched(kind)
    ranks = world().size
    shape = (ranks,) if mesh_shape is None else checked_shape(mesh_shape)
    if not shape or 0 in shape:
        raise ArgumentError(f"expected mesh_shape as one or more ints of at least 1, got {shape}")
    if math.prod(shape) > ranks:
        raise ArgumentError(
            f"expected a mesh of at most {ranks} ranks, got shape {shape}; start more with "
            f"nbrt.distributed.run(function, ranks={math.prod(shape)}), or mpiexec -n "
            f"{math.prod(shape)}"
        )
    names = _either(mesh_dim_names, dim_names)
    return DeviceMesh(kind, np.arange(math.prod(shape)).reshape(shape), names)


def checked_mesh(mesh: object) -> DeviceMesh:
    """Return `mesh` if it is a `DeviceMesh`, else raise."""
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(
            f"expected a DeviceMesh, got {mesh!r}; make one by init_device_mesh"
        )
    return mesh


def current_mesh() -> DeviceMesh:
    """Return the mesh of the innermost ``with mesh:`` block of this rank.

    Raises
    ------
    DistributedError
        If there is none.
    """
    stack: tuple[DeviceMesh, ...] = context.mesh_stack.get()
    if not stack:
        raise DistributedError(
            "expected a device mesh; pass device_mesh=, or enter one by `with mesh:`"
        )
    return stack[-1]


def _checked_ranks(mesh: Any, world_size: int) -> HostArray:
    try:
        ranks = np.array(mesh)  # a copy: the mesh is immutable
    except ValueError as error:
        raise ArgumentError(f"expected a mesh as an array of ranks, got {mesh!r}") from error
    if ranks.dtype.kind not in "iu" or ranks.ndim == 0 or ranks.size == 0:
        raise ArgumentError(f"expected a mesh as a non-empty array of ranks, got {mesh!r}")
    outside = ranks[(ranks < 0) | (ranks >= world_size)]
    if outside.size:
        raise ArgumentError(
            f"expected ranks of a world of {world_size}, in [0, {world_size}), got "
            f"{_shown(outside)}"
        )
    found, counts = np.unique(ranks, return_counts=True)
    if found.size != ranks.size:
        again = _shown(found[counts > 1])
        raise ArgumentError(f"expected every rank once in a mesh, got {again} more than once")
    ranks = ranks.astype(np.int64)
    ranks.flags.writeable = False
    return ranks


def _shown(ranks: HostArray) -> str:
    """Return ranks as a nested list, abbreviated if it is long."""
    if ranks.size <= _MAX_SHOWN:
        return str(ranks.tolist())
    return " ".join(np.array2string(ranks, separator=", ", threshold=_MAX_SHOWN).split())


def _either(names: Sequence[str] | None, alias: Sequence[str] | None) -> Sequence[str] | None:
    if names is not None and alias is not None:
        raise ArgumentError("expected mesh_dim_names or dim_names, which are the same, got both")
    return alias if names is None else names


def _checked_names(names: Any, ndim: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    given = tuple(names) if isinstance(names, (tuple, list)) else (names,)
    if (
        not all(isinstance(each, str) for each in given)
        or not len(set(given)) == len(given) == ndim
    ):
        raise ArgumentError(f"expected {ndim} different names of dimensions, got {given}")
    return given


def remember(mesh: DeviceMesh) -> None:
    """Record a mesh of the running rank, unless an equal one is recorded."""
    context.meshes.get().setdefault(mesh, mesh)


def mesh_of_this_rank(mesh: DeviceMesh) -> DeviceMesh:
    """Return the equal mesh of the running rank in its world; create it if missing.

    The ranks of a mesh create its groups in the same order, so a mesh from elsewhere, such as a
    recorded program, is replaced by the equal mesh of this rank.
    """
    known = context.meshes.get()
    found: DeviceMesh | None = known.get(checked_mesh(mesh))
    if found is None or found.communicator is not world():
        found = DeviceMesh(mesh.device_type, mesh.mesh, mesh.mesh_dim_names)
        known.pop(mesh, None)
        known[found] = found
    return found
