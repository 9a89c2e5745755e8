"""The layout of torch.func._random: a value depends on key and index only, on all GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nbrt.errors import NotSupportedError
from nbrt.random.layouts.element import WIDE, refuse_arrays
from nbrt.random.state import whole_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TorchStatelessLayout"]

_OFFERED = ("uniform", "integers")


@dataclass(frozen=True)
class TorchStatelessLayout:
    """The elements of ``torch.func._random.uniform`` and ``randint``, bit for bit.

    A key of torch, (seed, offset in blocks of 4 words), is the state (seed, 4 * offset) of a
    generator. A draw moves the state; in torch the caller does.
    """

    name: ClassVar[str] = "torch_stateless"
    follows_memory: ClassVar[bool] = False
    index_to_counter: ClassVar[Callable[..., Any] | None] = None

    def __str__(self) -> str:
        return self.name

    def increment(self, distribution: str, dtype: str, n: int, parameters: tuple[Any, ...]) -> int:
        """Return the 32-bit words that `n` elements take, in whole blocks of 4.

        Raises
        ------
        NotSupportedError
            If this layout has no such draw.
        """
        refuse_arrays(self.name, distribution, parameters)
        if distribution not in _OFFERED or dtype == "bool":
            raise NotSupportedError(
                f"expected one of the draws of torch.func._random that are exact "
                f"({', '.join(_OFFERED)}), got {distribution} of {dtype}; use layout='element'"
            )
        return whole_blocks(n * (2 if dtype in WIDE else 1))

    def constants(self, distribution: str, dtype: str, n: int) -> tuple[int, ...]:
        """Return no numbers: the words depend on the index only."""
        return ()
