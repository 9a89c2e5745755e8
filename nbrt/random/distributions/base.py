"""`BaseGenerator`: the state of a generator, and the one method that all distributions use."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import checked_int, checked_shape
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.state import (
    PhiloxState,
    checked_offset,
    checked_seed,
    whole_blocks,
)
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.random.layouts import Layout
    from nbrt.random.stream_position import StreamPosition
    from nbrt.typing import Array, HostArray, Shape

__all__ = ["BaseGenerator"]


class BaseGenerator(ABC):
    """State of a generator over a `StreamPosition`, and the abstract method `_draw`.

    `nbrt.Generator` implements `_draw` for arrays of one device, `nbrt.distributed.MeshGenerator`
    for distributed tensors. All distributions call it.
    """

    _position: StreamPosition

    @property
    @abstractmethod
    def device(self) -> Device:
        """The device on which arrays are made."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The rule that gives each element of a draw its words."""

    def _position_to_change(self) -> StreamPosition:
        """Return the position; raise CaptureError in a capture: its replays would not change it."""
        capture = current_stream(self.device).capture
        if capture is not None:
            capture.refuse(
                "a change of the state of a generator", "change it before the capture or a replay"
            )
        return self._position

    @property
    def _is_shard(self) -> bool:
        """Whether the draws are parts of whole draws; see `nbrt.Generator.shard`."""
        return False

    @abstractmethod
    def _draw(
        self,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Shape | None,
        dtype: np.dtype[Any],
        out: Array | None = None,
    ) -> Any:
        """Return an array of a distribution, and move the state by the words that it takes.

        Parameters
        ----------
        distribution : str
            Name of the distribution: "uniform", "normal", "gamma", ...
        parameters : tuple
            Numbers, or arrays that broadcast to the shape of the result.
        size : int, tuple of int or None
            Shape of the result; None: that of `out`, or to which the parameters broadcast.
        dtype : dtype
            Of the elements.
        out : array, optional
            An array to fill and return.
        """

    def _leading(self, size: Shape | None, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return the shape of a draw of vectors, without the axis of the vectors."""
        return default if size is None else checked_shape(size)

    @property
    def bit_generator(self) -> Self:
        """The generator itself, for code that asks NumPy's generators for theirs."""
        return self

    @property
    def seed_seq(self) -> np.random.SeedSequence:
        """The `numpy.random.SeedSequence` from which `spawn` takes its children."""
        position = self._position
        with position.lock:
            if position.sequence is None:
                position.sequence = np.random.SeedSequence(position.state.seed)
            return position.sequence

    @property
    def state(self) -> PhiloxState:
        """Seed and offset of the next draw; set it to continue from another state."""
        return self._position.state

    @state.setter
    def state(self, state: PhiloxState) -> None:
        if not isinstance(state, PhiloxState):
            raise ArgumentTypeError(f"expected a PhiloxState, got {state!r}")
        checked = state.checked()
        position = self._position_to_change()
        with position.lock:
            if checked.seed != position.state.seed:
                position.sequence = None
            position.state = checked

    def manual_seed(self, seed: int) -> Self:
        """Set the seed, and offset and spawning to 0; return the generator, as torch does."""
        state = PhiloxState(checked_seed(seed))
        position = self._position_to_change()
        with position.lock:
            position.sequence, position.state = None, state
        return self

    def seed(self) -> int:
        """Seed from the operating system, and return the seed."""
        seed = secrets.randbits(64)
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._position.state.seed

    def get_state(self) -> HostArray:
        """Return the state as 16 bytes, in the format of ``torch.cuda.get_rng_state``.

        Returns
        -------
        state : numpy.ndarray of uint8, shape (16,)
            Seed, then offset, little-endian.
        """
        return np.frombuffer(self._position.state.to_bytes(), np.uint8).copy()

    def set_state(self, state: Any) -> None:
        """Continue from a state of `get_state`, or of ``torch.cuda.get_rng_state``.

        Parameters
        ----------
        state : array_like of uint8, or bytes
            16 bytes; or 8, a seed, to start at offset 0.
        """
        data = np.asarray(state).tobytes() if hasattr(state, "__array__") else state
        self.state = PhiloxState.from_bytes(data)

    def get_offset(self) -> int:
        """Return the offset: the number of 32-bit words consumed."""
        return self._position.state.offset

    def set_offset(self, offset: int) -> None:
        """Set the offset, a multiple of 4 in [0, 2**64)."""
        number = checked_offset(offset)
        position = self._position_to_change()
        with position.lock:
            position.state = position.state._replace(offset=number)

    def advance(self, words: int) -> Self:
        """Skip `words` 32-bit words, rounded up to whole blocks of 4; return the generator.

        The offset wraps around at 2**64. A float32 element takes one word and a float64 element
        two, so element k of a draw starts at ``advance(k)`` or ``advance(2 * k)``, if that is a
        whole block.
        """
        count = checked_int("words to skip", words)
        if count < 0:
            raise ArgumentError(f"expected words to skip, got {count}; set state to go back")
        self._position_to_change().reserve(whole_blocks(count))
        return self
