"""Arrays as a kernel sees them that runs in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Array"]


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
