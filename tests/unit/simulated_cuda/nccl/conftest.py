"""Fixtures: the simulated NCCL under CuPy's real bindings, and two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.nccl_ranks import Rank, on_threads
from simulated_cuda import loader

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def nccl() -> Any:
    """Return CuPy's bindings."""
    loader.load()
    from cupy.cuda import nccl

    assert nccl.available
    return nccl


@pytest.fixture
def ranks(nccl: Any) -> Iterator[list[Rank]]:
    """Two ranks, on two devices, with one communicator."""
    key = nccl.get_unique_id()
    made = [Rank(nccl, number, number) for number in range(2)]

    def connect(rank: Rank) -> None:
        rank.comm = nccl.NcclCommunicator(2, key, rank.number)

    on_threads(made, connect)
    yield made
    for rank in made:
        rank.close()
