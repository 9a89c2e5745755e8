"""The default layout: an element's words are a function of its index alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nbrt.errors import NotSupportedError
from nbrt.random.state import whole_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SAMPLED", "WIDE", "ElementLayout", "refuse_arrays", "words_per_element"]

SAMPLED = frozenset(
    [
        "gamma",
        "beta",
        "chisquare",
        "dirichlet",
        "poisson",
        "binomial",
        "negative_binomial",
        "hypergeometric",
        "f",
        "standard_t",
        "noncentral_chisquare",
        "noncentral_f",
        "wald",
        "vonmises",
        "zipf",
        "logseries",
        "multinomial",
        "multivariate_hypergeometric",
    ]
)
"""Drawn by rejection: an element takes a block, and further blocks that no other element reads."""

WIDE = frozenset(["float64", "int64", "uint64"])
"""Dtypes of 64 bits."""

_WORDS_PER_BLOCK = 4


@dataclass(frozen=True, slots=True)
class ElementLayout:
    """Element i of a draw takes the next words after those of element i - 1.

    One 32-bit word for float16, bfloat16, float32, bool and integers of a range up to 2**32, two
    for float64, ``geometric`` and wider integers, and a block of four for draws by rejection.
    """

    name: ClassVar[str] = "element"
    follows_memory: ClassVar[bool] = False
    index_to_counter: ClassVar[Callable[..., Any] | None] = None

    def increment(self, distribution: str, dtype: str, n: int, parameters: tuple[Any, ...]) -> int:
        """Return the 32-bit words that `n` elements take, in whole blocks of 4."""
        return whole_blocks(n * words_per_element(distribution, dtype, parameters))

    def constants(self, distribution: str, dtype: str, n: int) -> tuple[int, ...]:
        """Return no numbers: the words depend on the index only."""
        return ()


def words_per_element(distribution: str, dtype: str, parameters: tuple[Any, ...]) -> int:
    """Return the 32-bit words of an element: 1, 2, or a block of 4."""
    if distribution in SAMPLED:
        return _WORDS_PER_BLOCK
    if distribution in ("bernoulli", "dropout"):
        return 1
    if distribution == "integers":
        low, high = parameters
        return 1 if high - low <= 2**32 else 2
    return 2 if dtype in WIDE else 1


def refuse_arrays(layout: str, distribution: str, parameters: tuple[Any, ...]) -> None:
    """Raise if a draw of a layout of torch has arrays as parameters, except where torch takes them.

    Raises
    ------
    NotSupportedError
        If a parameter is an array.
    """
    if distribution in ("bernoulli", "dropout", "shuffle_runs"):
        return
    if any(hasattr(parameter, "shape") for parameter in parameters):
        raise NotSupportedError(
            f"expected numbers as the parameters of {distribution} in layout {layout!r}, got "
            f"arrays; use layout='element', or scale a standard draw"
        )
