"""The world of the running rank: of a process alone, of one that was set up, of a rank of `run`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistributedError,
    NotSupportedError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}


@pytest.fixture(autouse=True)
def not_launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever runs the tests, they are not started by mpiexec."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    yield
    dist.destroy_process_group()


def test_a_process_is_alone_at_first() -> None:
    assert not dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert dist.world() is dist.world()
    assert dist.world().all_reduce(np.arange(3)).tolist() == [0, 1, 2]


def test_alone_the_current_device_counts() -> None:
    mesh = dist.init_device_mesh("cpu")
    assert str(mesh.device) == "cpu:0"
    with nbrt.device("cpu:2"):
        assert str(dist.world().device) == str(mesh.device) == "cpu:2"
        assert str(dist.world().group([0]).device) == "cpu:2"
    assert str(mesh.device) == "cpu:0"


def test_one_world_for_the_process() -> None:
    made = dist.init_process_group(device="cpu:1", timeout=5)
    assert made is dist.world()
    assert dist.is_initialized()
    assert (made.size, made.timeout, str(made.device)) == (1, 5.0, "cpu:1")
    with pytest.raises(DistributedError, match="call destroy_process_group first"):
        dist.init_process_group()
    assert dist.world() is made
    seen: list[Any] = []
    other = threading.Thread(target=lambda: seen.append(dist.world()))
    other.start()
    other.join()
    assert seen == [made]
    dist.destroy_process_group()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert dist.world() is not made


def test_a_world_that_cannot_be_set_up_leaves_none() -> None:
    with pytest.raises(ArgumentError, match=r"'mpi' or 'nccl', got 'gloo'.*nbrt\.distributed\.run"):
        dist.init_process_group("gloo")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"no options .* got \['port'\]"):
        dist.init_process_group(port=1)
    with pytest.raises(ArgumentError, match="timeout in seconds"):
        dist.init_process_group(timeout=0)
    with pytest.raises(UnknownDeviceError):
        dist.init_process_group(device="cpx")
    assert not dist.is_initialized()


def test_a_process_that_mpiexec_started_uses_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    from nbrt.distributed.communicators import mpi

    class Connected:
        def __init__(self, **options: Any) -> None:
            self.options = options
            self.closed = False

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(mpi, "MpiCommunicator", Connected)
    monkeypatch.setenv("PMI_SIZE", "4")
    made: Any = dist.init_process_group(timeout=3)
    assert isinstance(made, Connected)
    assert made.options == {"device": None, "timeout": 3}
    dist.destroy_process_group()
    assert made.closed


def test_ranks_of_a_run_have_their_own() -> None:
    outside = dist.init_process_group()

    def rank() -> tuple[int, int, bool]:
        with pytest.raises(DistributedError, match="a process without a world"):
            dist.init_process_group()
        with pytest.raises(DistributedError, match=r"a rank of nbrt\.distributed\.run"):
            dist.destroy_process_group()
        return dist.get_rank(), dist.get_world_size(), dist.is_initialized()

    assert dist.run(rank, ranks=2, timeout=HANG_TIMEOUT) == [(0, 2, True), (1, 2, True)]
    assert dist.world() is outside


def test_torchrun_means_a_transport_of_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NotSupportedError, match="cpu"):
        dist.init_process_group(device="cpu:0")
    assert not dist.is_initialized()
    # A mesh of CPUs under torchrun is one of this process.
    assert dist.init_device_mesh("cpu").size() == 1
    assert not dist.is_initialized()
