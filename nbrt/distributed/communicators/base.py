"""`Communicator`: the collective operations of a group of ranks.

An adapter implements them over a transport. Meshes, redistribution and random numbers use this
interface only, so ranks may be threads, MPI processes or GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.device import Device
    from nbrt.typing import Array

__all__ = ["DEFAULT_TIMEOUT", "REDUCTIONS", "Communicator", "ReduceOp"]

ReduceOp: TypeAlias = Literal["sum", "prod", "min", "max"]
"""The reductions of `all_reduce` and `reduce_scatter`."""

REDUCTIONS: tuple[ReduceOp, ...] = ("sum", "prod", "min", "max")

DEFAULT_TIMEOUT = 300.0
"""Seconds that a rank waits for the other ranks."""


@runtime_checkable
class Communicator(Protocol):
    """A group of ranks that call the same operations in the same order.

    Arrays belong to the array library of the device and may have any strides. Results are new,
    contiguous arrays. An operation waits for the work that is queued on the current stream, and
    work that is queued on it afterwards sees the result.

    Every operation raises, on every rank that still runs:

    - `RankMismatchError` if the ranks call different operations, or pass shapes, dtypes, roots or
      reductions that do not match; the error names the rank that differs;
    - `CollectiveTimeoutError` if ranks do not come within `timeout`; the error names them;
    - `RankFailedError` if a rank ended with an exception; the error names both.

    An adapter may omit the first check if it costs communication.

    Attributes
    ----------
    rank : int
        The number of this rank in the group, from 0.
    size : int
        Number of ranks in the group.
    ranks : tuple of int
        The world ranks of the members.
    timeout : float
        Seconds to wait for the other ranks; may be set. A new group inherits it.
    is_in_process : bool
        Whether the ranks are threads of one process, which exchange objects at little cost.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    timeout: float
    is_in_process: bool

    @property
    def device(self) -> Device:
        """The device of this rank's arrays."""
        ...

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return the array of `root`; `array` has the same shape and dtype on every rank."""
        ...

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the elementwise reduction of all arrays, with equal bits on every rank."""
        ...

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return the arrays of all ranks, in order of rank.

        Parameters
        ----------
        array : array
            The array of this rank.
        shapes : sequence of tuple of int, optional
            The shapes of all arrays (MPI's ``allgatherv``); equal shapes by default.
        """
        ...

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of the arrays that all ranks pass for this rank.

        Parameters
        ----------
        arrays : sequence of array
            One for each rank; ``arrays[k]`` has the same shape on every rank.
        op : {"sum", "prod", "min", "max"}
            The reduction.
        """
        ...

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return the arrays that all ranks pass for this rank, in order of rank.

        Parameters
        ----------
        arrays : sequence of array
            One for each rank, of one dtype; any may be empty.
        shapes : sequence of tuple of int, optional
            The shapes of the results; those of `arrays` by default.
        """
        ...

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with the array that `root` passes for this rank, and return it.

        Parameters
        ----------
        arrays : sequence of array, or None
            One for each rank on `root`; None on the other ranks.
        out : array
            An array of the shape and dtype of the result.
        root : int
            The rank that sends.
        """
        ...

    def barrier(self) -> None:
        """Wait for every rank of the group."""
        ...

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks; for small objects, such as a seed or a shape."""
        ...

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the Python object of `root`."""
        ...

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return a group of some of these ranks, in that order.

        Only the members call this, and they create their groups in the same order.

        Parameters
        ----------
        ranks : sequence of int
            Numbers in this group.
        """
        ...

    def check_rank(self, generator: object, is_default: bool = False) -> None:
        """Raise if the running rank may not draw from a generator over this communicator.

        Ranks that are threads can take the communicator or the generator of another rank. An
        adapter whose ranks are processes does nothing.

        Parameters
        ----------
        generator : Generator
            The generator to draw from.
        is_default : bool
            Whether it is the default generator of the running context.
        """
        ...
