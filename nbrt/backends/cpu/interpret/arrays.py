"""Arrays as a kernel sees them that runs in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt.backends.cpu.interpret.spinning import watch

__all__ = ["Array", "SharedArray"]


class Array(np.ndarray):
    """An array that casts what is stored in it as compiled code does.

    NumPy refuses an integer scalar that the array's type cannot hold; compiled code keeps its
    lowest bits, like ``astype``. Fields of records are attributes in compiled code.
    """

    def __getitem__(self, index: Any) -> Any:
        """Read an element or a view; a record's fields are attributes, too."""
        found = super().__getitem__(index)
        if isinstance(found, np.void) and self.dtype.names:
            return self.view(np.ndarray).view(np.recarray)[index]
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value; an array of no dimensions is cast where a scalar is refused."""
        super().__setitem__(index, np.asarray(value) if isinstance(value, np.number) else value)

    def __repr__(self) -> str:
        """Print it as any array."""
        return repr(self.view(np.ndarray))


class SharedArray(Array):
    """An array that several threads see: what they read and write is watched, for spins."""

    def __getitem__(self, index: Any) -> Any:
        """Read an element or a view."""
        found = super().__getitem__(index)
        self.note(index, found)
        return found

    def note(self, index: Any, found: Any) -> None:
        """Note that the thread has read an element; it may yield here."""
        if watch.reads is not None and not isinstance(found, np.ndarray):
            owner = self if self.base is None else self.base
            value = found.tobytes() if isinstance(found, np.void) else found
            watch.reads.note((id(owner), index), value)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value."""
        reads = watch.reads
        if reads is None or reads.has_changed:
            super().__setitem__(index, value)
            return
        before = np.array(super().__getitem__(index))
        super().__setitem__(index, value)
        after = np.asarray(super().__getitem__(index))
        reads.has_changed = before.tobytes() != after.tobytes()
