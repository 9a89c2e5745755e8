"""`HostBlock`: a piece of host memory that is handed out, and how an array's block is found."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nbrt.typing import HostArray

__all__ = ["ALIGNMENT", "BlockBytes", "HostBlock", "block_from_external", "owner_of"]

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load."""

_BYTE = np.dtype(np.uint8)


class BlockBytes(np.ndarray[Any, np.dtype[Any]]):
    """The bytes of a block, at the end of the bases of every array over it.

    NumPy collapses chains of views, but never through another class: so the one plain array right
    over these bytes is kept by all its views, and dies with the last. Keeps the mapping under it.
    """

    __slots__ = ("kept", "tenant")

    kept: object
    tenant: object

    def __array_finalize__(self, parent: object) -> None:
        # Somebody takes a view of an array's base: the array must live as long. Or a view of this
        # class of an array, which NumPy lets refer to the array's base.
        if type(parent) is BlockBytes:
            tenant = getattr(parent, "tenant", None)
            first = getattr(parent, "kept", None)
            self.kept = first if tenant is None else getattr(tenant, "lease", None)
        elif parent is not None:
            self.kept = parent


class HostBlock:
    """Host memory for one tenant at a time.

    Parameters
    ----------
    buffer : object
        What the block is a part of; kept as long as any array over the block.
    offset, nbytes : int
        Which part.
    address : int
        Where it lies.

    Attributes
    ----------
    address : int
        First byte.
    nbytes : int
        Bytes usable.
    view : memoryview
        The bytes. A plain array right over them is a lease itself, for the tenant of the last one.
    """

    __slots__ = ("_bytes", "address", "nbytes", "view")

    def __init__(self, buffer: Any, offset: int, nbytes: int, address: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self._bytes = BlockBytes((nbytes,), _BYTE, buffer, offset)
        # NumPy looks through memoryviews: the base of an array over it is the bytes.
        self.view = memoryview(self._bytes)  # type: ignore[arg-type]  # mypy knows no buffers before 3.12

    def lease(self, tenant: object) -> HostArray:
        """Return the bytes as a new array, which every array made over it keeps."""
        self._bytes.tenant = tenant
        return np.ndarray((self.nbytes,), _BYTE, self.view)

    def mould(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """Return the bytes in a shape and dtype: plain arrays are views of it, quickly made."""
        mould = BlockBytes(shape, dtype, self.view)
        mould.tenant = self._bytes.tenant
        return mould

    def release(self) -> None:
        """Let go of the tenant and of the memory: the pool has taken the block back."""
        self._bytes.tenant = None
        del self._bytes, self.view


def block_from_external(address: int, nbytes: int, keep: object) -> HostBlock:
    """Return memory of another allocator as a block; `keep` lives as long as any array over it."""
    memory = (ctypes.c_char * nbytes).from_address(address)
    memory.keep = keep  # type: ignore[attr-defined]
    return HostBlock(memory, 0, nbytes, address)


def owner_of(array: object) -> object | None:
    """Return the tenant of the block under an array or a view of it; None: no block of ours."""
    found: Any = array
    while True:
        kind = type(found)
        if kind is np.ndarray:
            found = found.base
        elif kind is BlockBytes:
            # A view that somebody took of them has no tenant, but its own base has.
            tenant: object | None = getattr(found, "tenant", None)
            if tenant is not None:
                return tenant
            found = found.base
        elif kind is memoryview:
            found = found.obj
        elif found is None or (found is array and not isinstance(found, np.ndarray)):
            return None
        else:
            # An array of another class, or what NumPy's stride tricks put between two arrays.
            found = getattr(found, "base", None)
