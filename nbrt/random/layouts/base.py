"""`Layout`: which words of a Philox stream belong to which element of a draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Layout"]


class Layout(Protocol):
    """The rule of a layout; anybody may write one and pass it as ``Generator(layout=...)``.

    Layouts are immutable values: equal layouts give equal bits. A layout may also have an attribute
    `follows_torch`: True, if it has the distributions "random" and "shuffle_runs", of which
    `Generator.fill_integers` and permutations are made as in torch.
    """

    @property
    def name(self) -> str:
        """Name by which backends know the rule."""
        ...

    @property
    def follows_memory(self) -> bool:
        """Whether the elements of an array are counted as they lie in memory, not in C order."""
        ...

    @property
    def index_to_counter(self) -> Callable[..., Any] | None:
        """The rule as a device function, where backends do not know its name; else None.

        ``index_to_counter(index, words, *constants)`` takes uint64 numbers: the element, its number
        of 32-bit words (1 or 2) and three constants (0 where `constants` gives fewer). It returns
        ``(block, high, lane)``: counter words 0 and 1 (relative to the offset), counter words 2
        and 3, and the word, or pair of words, of the block that the element takes.
        """
        ...

    def increment(self, distribution: str, dtype: str, n: int, parameters: tuple[Any, ...]) -> int:
        """Return the 32-bit words, a multiple of 4, by which `n` > 0 elements move the offset.

        Raises
        ------
        NotSupportedError
            If the layout has no such distribution.
        """
        ...

    def constants(self, distribution: str, dtype: str, n: int) -> tuple[int, ...]:
        """Return the numbers that kernels need besides the element's index."""
        ...
