"""Arguments of launches on CPU devices: arrays of other libraries, and of other devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt.backends.cpu.memory import owner_of
from nbrt.errors import DeviceMismatchError

__all__ = ["as_numpy", "check_owners"]


_MAY_HAVE_OWNERS = (np.ndarray, tuple, memoryview)


def check_owners(args: tuple[Any, ...], index: int) -> None:
    """Raise `DeviceMismatchError` for memory of another CPU device than the one with the index."""
    for position, argument in enumerate(args):
        if not isinstance(argument, _MAY_HAVE_OWNERS):
            continue
        items = [argument]
        while items:
            item = items.pop()
            if isinstance(item, tuple):
                items += item
                continue
            owner = getattr(owner_of(item), "index", index)
            if owner != index:
                raise DeviceMismatchError(
                    f"expected argument {position} on cpu:{index}, where the kernel runs, got an "
                    f"array of cpu:{owner}; copy it with nbrt.to(array, 'cpu:{index}')"
                )


def as_numpy(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace host arrays of other libraries by NumPy arrays over the same memory."""
    converted = []
    for position, argument in enumerate(args):
        if isinstance(argument, np.ndarray):
            is_plain = type(argument) is np.ndarray
            converted.append(argument if is_plain else argument.view(np.ndarray))
        # Not isinstance of the protocol, which takes 20 times as long.
        elif hasattr(argument, "__cuda_array_interface__"):
            raise DeviceMismatchError(
                f"expected argument {position} in host memory, got a CUDA array of type "
                f"{type(argument).__name__}; copy it with nbrt.to(array, 'cpu')"
            )
        elif hasattr(argument, "__dlpack__") and not isinstance(argument, np.generic):
            converted.append(np.from_dlpack(argument))
        else:
            converted.append(argument)
    return tuple(converted)
