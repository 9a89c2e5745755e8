"""`Adapter`: argument checks and call signatures that all communicators share."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from nbrt.distributed.communicators.checks import (
    check_array,
    check_arrays,
    check_elements,
    check_op,
    check_root,
    check_shapes,
    check_timeout,
    refuse_pickling,
)
from nbrt.distributed.communicators.signatures import CallSignature
from nbrt.errors import ArgumentError
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    import numpy as np

    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array

__all__ = ["Adapter"]

Shapes = list[tuple[int, ...]]


class Adapter(ABC):
    """A `Communicator` that checks arguments and leaves the transport to its subclass."""

    rank: int
    size: int
    ranks: tuple[int, ...]
    is_in_process = False
    _timeout: float

    @property
    def timeout(self) -> float:
        """Seconds to wait for the other ranks."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = check_timeout(seconds)

    def __repr__(self) -> str:
        device: Any = getattr(self, "device", None)
        return f"{type(self).__name__}(rank={self.rank}, size={self.size}, device='{device}')"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def check_rank(  # noqa: B027  # a process is one rank, which owns its generators
        self, generator: object, is_default: bool = False
    ) -> None:
        """Do nothing; see `Communicator`."""

    def _check_runs(self, name: str) -> None:
        """Raise CaptureError in a capture, on every rank, before a rank waits for others."""
        communicator: Any = self  # the subclass has the device
        capture = current_stream(communicator.device).capture
        if capture is not None:
            capture.refuse(
                f"{name} of arrays between ranks",
                "redistribute a DTensor instead, or call it before the capture",
            )

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Return the array of `root`; see `Communicator`."""
        self._check_runs("broadcast")
        check_array(array)
        check_root(root, self.size)
        name = _dtype_name(array.dtype)
        signature = CallSignature("broadcast", array.shape, name, root=int(root))
        return self._broadcast(array, int(root), signature)

    def all_reduce(self, array: Array, op: ReduceOp = "sum") -> Array:
        """Return the reduction of all arrays; see `Communicator`."""
        self._check_runs("all_reduce")
        check_array(array)
        check_op(op)
        signature = CallSignature("all_reduce", array.shape, _dtype_name(array.dtype), op)
        return self._all_reduce(array, op, signature)

    def all_gather(
        self, array: Array, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return the arrays of all ranks; see `Communicator`."""
        self._check_runs("all_gather")
        check_array(array)
        check_shapes(shapes, self.size)
        if shapes is not None and tuple(shapes[self.rank]) != array.shape:
            raise ArgumentError(
                f"expected an array of shape {tuple(shapes[self.rank])}, as shapes says of rank "
                f"{self.rank}, got {array.shape}"
            )
        every = [array.shape] * self.size if shapes is None else [tuple(each) for each in shapes]
        signature = CallSignature("all_gather", _shared(every), _dtype_name(array.dtype))
        return self._all_gather(array, every, signature)

    def reduce_scatter(self, arrays: Sequence[Array], op: ReduceOp = "sum") -> Array:
        """Return the reduction of the arrays for this rank; see `Communicator`."""
        self._check_runs("reduce_scatter")
        check_arrays(arrays, self.size)
        check_op(op)
        shapes = _shared([array.shape for array in arrays])
        signature = CallSignature("reduce_scatter", shapes, _dtype_name(arrays[0].dtype), op)
        return self._reduce_scatter(arrays, op, signature)

    def all_to_all(
        self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return the arrays that all ranks pass for this rank; see `Communicator`."""
        self._check_runs("all_to_all")
        check_arrays(arrays, self.size)
        check_shapes(shapes, self.size)
        signature = CallSignature("all_to_all", dtype=_dtype_name(arrays[0].dtype))
        expected = [array.shape for array in arrays] if shapes is None else shapes
        return self._all_to_all(arrays, [tuple(shape) for shape in expected], signature)

    def scatter(self, arrays: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Fill `out` with the array of `root` for this rank; see `Communicator`."""
        self._check_runs("scatter")
        check_array(out)
        check_root(root, self.size)
        sent: Sequence[Array] = ()
        if self.rank == root:
            check_arrays(arrays, self.size)
            sent = arrays or ()
        signature = CallSignature("scatter", dtype=_dtype_name(out.dtype), root=int(root))
        return self._scatter(sent, out, int(root), signature)

    @abstractmethod
    def _broadcast(self, array: Array, root: int, signature: CallSignature) -> Array: ...

    @abstractmethod
    def _all_reduce(self, array: Array, op: ReduceOp, signature: CallSignature) -> Array: ...

    @abstractmethod
    def _all_gather(
        self, array: Array, shapes: Shapes, signature: CallSignature
    ) -> list[Array]: ...

    @abstractmethod
    def _reduce_scatter(
        self, arrays: Sequence[Array], op: ReduceOp, signature: CallSignature
    ) -> Array: ...

    @abstractmethod
    def _all_to_all(
        self, arrays: Sequence[Array], shapes: Shapes, signature: CallSignature
    ) -> list[Array]: ...

    @abstractmethod
    def _scatter(
        self, arrays: Sequence[Array], out: Array, root: int, signature: CallSignature
    ) -> Array: ...


@functools.lru_cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype whose elements can be sent."""
    check_elements(dtype)
    return str(dtype)


def _shared(shapes: Shapes) -> Any:
    """Return the shape that all arrays have, or all shapes."""
    return shapes[0] if len(set(shapes)) == 1 else tuple(shapes)
