"""`Communicator`: what ranks need of each other, on one page; transports are other people's.

An adapter moves the bytes. Everything above (meshes, redistribution, random numbers) is written
over this page alone, so ranks may be threads, MPI processes or GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.device import Device
    from nbrt.typing import Array

__all__ = ["DEFAULT_TIMEOUT", "REDUCTIONS", "Communicator", "ReduceOp"]

ReduceOp: TypeAlias = Literal["sum", "prod", "min", "max"]
"""How `all_reduce` and `reduce_scatter` combine what the ranks give."""

REDUCTIONS: tuple[ReduceOp, ...] = ("sum", "prod", "min", "max")

DEFAULT_TIMEOUT = 300.0
"""Seconds that a rank waits for the others."""


@runtime_checkable
class Communicator(Protocol):
    """A group of ranks that call the same operations in the same order.

    Arrays are of the device's own library and may have any strides; results are new, contiguous
    arrays. An operation is complete when it returns as far as the current stream is concerned: work
    queued on it afterwards sees the result. An adapter waits for work queued before.

    Every operation raises, on every rank that is still there:

    - `RankMismatchError` if the ranks called different operations, or with shapes, dtypes, roots or
      reductions that do not fit, saying which rank differs;
    - `CollectiveTimeoutError` if ranks did not come within `timeout`, naming the missing ones;
    - `RankFailedError` if a rank ended with an exception, naming it and its exception.

    Where an adapter cannot tell without more communication, it may leave the first check out.

    Attributes
    ----------
    rank : int
        This rank's number in the group, from 0.
    size : int
        Ranks in the group.
    ranks : tuple of int
        The number that each rank of the group has in the world.
    timeout : float
        Seconds to wait for the others; may be set. A group starts with that of its parent.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    timeout: float

    @property
    def device(self) -> Device:
        """Where this rank's arrays live."""
        ...

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return, in an array of the shape and dtype of `array`, what `root` gave."""
        ...

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the elementwise reduction of what all ranks gave, the same bits on every rank."""
        ...

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave, in order of rank.

        Parameters
        ----------
        array : array
            This rank's.
        shapes : sequence of tuple of int, optional
            The shapes of the ranks' arrays (MPI's ``allgatherv``); equal ones by default.
        """
        ...

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of what all ranks gave for this one.

        Parameters
        ----------
        arrays : sequence of array
            One for each rank; ``arrays[k]`` has the same shape on every rank, but may differ from
            ``arrays[j]``.
        op : {"sum", "prod", "min", "max"}
            The reduction.
        """
        ...

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return what each rank gave for this one, in order of rank.

        Parameters
        ----------
        arrays : sequence of array
            One for each rank, of one dtype; any may be empty.
        shapes : sequence of tuple of int, optional
            The shapes of what comes; those of `arrays` by default.
        """
        ...

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with the array that `root` gave for this rank, and return it.

        Parameters
        ----------
        arrays : sequence of array, or None
            At the root one for each rank; None elsewhere.
        out : array
            Of the shape and dtype of this rank's array.
        root : int
            The rank that gives.
        """
        ...

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        ...

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return what each rank gave: small Python objects, such as a seed or a shape."""
        ...

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the Python object that `root` gave."""
        ...

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return a group of some of these ranks, in that order.

        Only the ranks of the new group take part, and each must be one of them. They must ask for
        their groups in the same order.

        Parameters
        ----------
        ranks : sequence of int
            Numbers in this group.
        """
        ...
