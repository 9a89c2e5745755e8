"""`Layout`: the rule that gives each element of a draw its words of a Philox stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Layout"]


class Layout(Protocol):
    """The interface of layouts, also of custom ones for ``Generator(layout=...)``.

    Layouts are immutable values: equal layouts give equal bits. With an attribute `follows_torch`
    that is True, `Generator.fill_integers` and permutations use the algorithms of torch, by the
    distributions "random" and "shuffle_runs".
    """

    @property
    def name(self) -> str:
        """The name of the rule, for backends."""
        ...

    @property
    def follows_memory(self) -> bool:
        """Whether the elements of an array are counted in memory order, not in C order."""
        ...

    @property
    def index_to_counter(self) -> Callable[..., Any] | None:
        """The rule as a device function, for backends that do not know its name; else None.

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
        """Return the numbers that kernels need in addition to the element's index."""
        ...
