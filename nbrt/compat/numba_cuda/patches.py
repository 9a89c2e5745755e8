"""Replaced attributes and dictionary entries, and their restoration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

__all__ = ["Patches"]

_MISSING = object()


class Patches:
    """Replaces attributes of modules and classes; `undo` restores them, the latest first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until `undo`."""
        before = vars(owner).get(name, _MISSING)

        def restore() -> None:
            if before is _MISSING:
                if name in vars(owner):
                    delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, value)
        self._undo.append(restore)

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set an entry of a mapping until `undo`."""
        before = mapping.get(key, _MISSING)

        def restore() -> None:
            del mapping[key]
            if before is not _MISSING:
                mapping[key] = before

        if before is not _MISSING:
            del mapping[key]  # Numba's registries refuse a second value for a key
        mapping[key] = value
        self._undo.append(restore)

    def add_undo(self, function: Callable[[], None]) -> None:
        """Call a function at `undo`, before what was replaced earlier is restored."""
        self._undo.append(function)

    def undo(self) -> None:
        """Restore everything."""
        while self._undo:
            self._undo.pop()()
