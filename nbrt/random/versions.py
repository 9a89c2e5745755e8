"""Stream versions: which bits a distribution promises."""

from __future__ import annotations

__all__ = ["stream_version"]

_CHANGED: dict[tuple[str, str], int] = {}
"""By (layout, distribution): versions above 1. docs/rng_policy.md says what changed."""


def stream_version(distribution: str, layout: str = "element") -> int:
    """Return the version of the bits of a distribution in a layout.

    Equal versions mean equal bits for equal seed, offset, parameters, dtype and element, on every
    device and in every release of nbrt.

    Parameters
    ----------
    distribution : str
        Its name, such as "uniform" or "gamma".
    layout : str
        Name of the layout.

    Examples
    --------
    >>> stream_version("uniform")
    1
    """
    return _CHANGED.get((layout, distribution), 1)
