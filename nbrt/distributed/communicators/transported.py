"""`TransportCollectives`: the operations on arrays of a `Communicator` over a `Transport`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.distributed.communicators.adapter import Adapter, Shapes
from nbrt.distributed.communicators.packing import MessagePacker, counts_of
from nbrt.runtime.array import copy
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt._internal.device import Device
    from nbrt.backends.transport import Transport
    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.distributed.communicators.signatures import CallSignature
    from nbrt.typing import Array

__all__ = ["TransportCollectives"]


class TransportCollectives(Adapter):
    """A `Communicator` whose arrays a transport moves, in order with the current stream.

    Attributes
    ----------
    device : Device
        The device of this rank's arrays.
    """

    device: Device
    _packer: MessagePacker
    _transport: Transport

    def _enter(self, signature: CallSignature) -> None:
        """Start an operation; a subclass may compare what the ranks do."""

    def _broadcast(self, array: Array, root: int, signature: CallSignature) -> Array:
        self._enter(signature)
        is_root = self.rank == root
        buffer = self._packer.pack([array], True) if is_root else self._packer.new(array.nbytes)
        self._enqueue(self._transport.broadcast, buffer, root)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def _all_reduce(self, array: Array, op: ReduceOp, signature: CallSignature) -> Array:
        self._enter(signature)
        if not self._transport.reduces(array.dtype, op):
            return self._packer.reduce(self._gather(array), op)
        buffer = self._packer.new(array.nbytes)
        outgoing = self._packer.pack([array])
        self._enqueue(self._transport.all_reduce, outgoing, buffer, array.dtype, op)
        return self._packer.unpack(buffer, [array.shape], array.dtype)[0]

    def _all_gather(self, array: Array, shapes: Shapes, signature: CallSignature) -> list[Array]:
        self._enter(signature)
        if len(set(shapes)) == 1:
            return self._gather(array)
        return self._exchange([array] * self.size, shapes)

    def _reduce_scatter(
        self, arrays: Sequence[Array], op: ReduceOp, signature: CallSignature
    ) -> Array:
        shapes, dtype = [array.shape for array in arrays], arrays[0].dtype
        self._enter(signature)
        own = shapes[self.rank]
        if len(set(shapes)) > 1 or not self._transport.reduces(dtype, op):
            return self._packer.reduce(self._exchange(arrays, [own] * self.size), op)
        buffer = self._packer.new(arrays[0].nbytes)
        outgoing = self._packer.pack(arrays)
        self._enqueue(self._transport.reduce_scatter, outgoing, buffer, dtype, op)
        return self._packer.unpack(buffer, [own], dtype)[0]

    def _all_to_all(
        self, arrays: Sequence[Array], shapes: Shapes, signature: CallSignature
    ) -> list[Array]:
        self._enter(signature)
        return self._exchange(arrays, shapes)

    def _scatter(
        self, arrays: Sequence[Array], out: Array, root: int, signature: CallSignature
    ) -> Array:
        self._enter(signature)
        outgoing = {rank: self._packer.pack([array]) for rank, array in enumerate(arrays)}
        buffer = self._packer.new(out.nbytes)
        self._enqueue(self._transport.exchange, outgoing, {root: buffer})
        received = self._packer.unpack(buffer, [out.shape], out.dtype)[0]
        copy(out, received, stream=current_stream(self.device))
        return out

    def _enqueue(self, function: Callable[..., None], *args: Any) -> None:
        stream = current_stream(self.device)
        stream.enqueue("collective", function, args, function.__name__)

    def _gather(self, array: Array) -> list[Array]:
        buffer = self._packer.new(self.size * array.nbytes)
        self._enqueue(self._transport.all_gather, self._packer.pack([array]), buffer)
        return self._packer.unpack(buffer, [array.shape] * self.size, array.dtype)

    def _exchange(self, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        dtype = arrays[0].dtype
        counts = counts_of(shapes, dtype)
        buffers = [self._packer.new(count) for count in counts]
        outgoing = {rank: self._packer.pack([array]) for rank, array in enumerate(arrays)}
        self._enqueue(self._transport.exchange, outgoing, dict(enumerate(buffers)))
        return [
            self._packer.unpack(buffer, [shape], dtype)[0]
            for buffer, shape in zip(buffers, shapes, strict=True)
        ]
