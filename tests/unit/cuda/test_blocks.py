"""The requirements of the runtime on the blocks of every pool."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.backends.cpu.memory import CachingPool, ExpandablePool, PinnedPool, PlainPool
from nbrt.backends.pools import AddressableBlock
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface

CUDA_KINDS = ("caching", "async", "managed", "system", "plain", "expandable", "pinned")
HOST_POOLS = (CachingPool, ExpandablePool, PinnedPool, PlainPool)
KIB = 1 << 10


def check(block: Any) -> None:
    """`Block`, and `AddressableBlock` wholly or not at all."""
    assert block.address > 0
    assert block.nbytes >= 700
    handle = block.handle("owner")
    alive = weakref.ref(handle)
    del handle
    assert alive() is None
    parts = [hasattr(block, name) for name in ("view", "template")]
    assert parts in ([True, True], [False, False])
    assert isinstance(block, AddressableBlock) is all(parts)
    if all(parts):
        template = block.template((7, 5), np.dtype("int32"))
        assert template.ctypes.data == block.address
        assert block.view.nbytes == block.nbytes


@pytest.mark.parametrize("kind", CUDA_KINDS)
def test_blocks_of_cuda_pools(interface: CudaInterface, kind: str) -> None:
    try:
        pool = interface.create_pool(0, kind, {})
    except NotSupportedError as error:
        pytest.skip(str(error))
    check(pool.allocate(interface.default_queue(0), 700))


@pytest.mark.parametrize("pool", HOST_POOLS)
def test_blocks_of_host_pools(pool: Any) -> None:
    check(pool().allocate(SynchronousQueue(0), 700))


@pytest.mark.parametrize("nbytes", [64, 8 * KIB, 1024 * KIB, 3000 * KIB])
def test_pinned_memory_of_cuda_is_used_again(interface: CudaInterface, nbytes: int) -> None:
    for kind in ("int8", "int8", "int8", "int16", "int16"):
        array = nbrt.empty_pinned(nbytes // np.dtype(kind).itemsize, kind, device="cuda:0")
        owner: Any = interface.owner_of(array)
        assert owner is not None, "not a block's memory"
        assert owner.address == array.ctypes.data
        del array, owner
