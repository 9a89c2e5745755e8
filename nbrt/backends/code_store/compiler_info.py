"""`CompilerInfo`: what compiled code must fit to be found and run on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.code_store.entry import Entry

__all__ = ["CompilerInfo"]


@dataclass(frozen=True, slots=True)
class CompilerInfo:
    """The compiler of a kind of device, and the processors of this machine.

    Attributes
    ----------
    versions : Mapping[str, str]
        As in its entries.
    targets : Mapping[str, str]
        The targets that run here, with their features, as in its entries.
    """

    versions: Mapping[str, str]
    targets: Mapping[str, str] = field(default_factory=dict)

    def runs(self, entry: Entry) -> bool:
        """Return whether an entry is for a processor of this machine."""
        return self.targets.get(entry.target) == entry.features

    def difference(self, entry: Entry) -> str | None:
        """Return how the compiler of an entry differs from this one, or None."""
        theirs, here = entry.versions, self.versions
        parts = [
            f"{name} {theirs.get(name, 'none')} (here {here.get(name, 'none')})"
            for name in sorted({*theirs, *here})
            if theirs.get(name) != here.get(name)
        ]
        return ", ".join(parts) or None
