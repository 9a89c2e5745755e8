"""`Version`: what a launch or a draw on a fake device would compile on a real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.typing import Dim3

__all__ = ["OnVersion", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """A kernel for one block shape and one list of argument types.

    Attributes
    ----------
    program : object
        Identifies the kernel with the values that it captures.
    function : callable
        The kernel, or a ``cuda.jit`` dispatcher of it.
    index : int
        The device.
    grid, block : tuple of int
        The configuration of the first launch.
    shared : int
        Its bytes of dynamic shared memory.
    args : tuple
        Host values of the arguments' types.
    key : hashable
        Equal for equal types.
    is_draw : bool
        A random draw launches it.
    """

    program: object
    function: Callable[..., object]
    index: int
    grid: Dim3
    block: Dim3
    shared: int
    args: tuple[Any, ...]
    key: Hashable
    is_draw: bool = False


OnVersion: TypeAlias = "Callable[[Version], object]"
