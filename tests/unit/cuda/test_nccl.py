from __future__ import annotations

import socket
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT, JumpingClock
from helpers.collectives import (
    CASES,
    OnDevice,
    barriers,
    given,
    groups_of_groups_do_not_mix,
    groups_of_some_ranks,
    objects,
)
from nbrt import config
from nbrt.backends.cuda import nccl as nccl_module
from nbrt.backends.cuda.nccl import TcpStore, load_nccl
from nbrt.distributed.communicators import nccl as communicator_module
from nbrt.distributed.communicators.nccl import NcclCommunicator
from nbrt.distributed.communicators.threads import thread_world
from nbrt.errors import (
    ArgumentError,
    BackendUnavailableError,
    CollectiveTimeoutError,
    DistributedError,
    NotSupportedError,
    RankMismatchError,
)
from nbrt.runtime.commands import install_hook
from nbrt.testing.latch import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.backend import CudaInterface


@pytest.fixture
def nccl(cuda_interface: CudaInterface) -> Any:
    """CuPy's bindings of NCCL, on a machine with two devices."""
    if nbrt.device_count("cuda") < 2:
        pytest.skip("needs two CUDA devices: NCCL takes one rank for each")
    try:
        return load_nccl()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def address() -> str:
    """A free address of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def on_threads(size: int, work: Callable[[int], Any], failed: Any = None) -> list[Any]:
    """Return what `work` returns on each thread, or raise what it raises."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001  # raised in the test's thread
            errors.append(error)
            if failed is not None:
                failed(number, error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def on_ranks(size: int, work: Callable[[NcclCommunicator], Any]) -> list[Any]:
    """Return what `work` returns on ranks that are threads, or raise what it raises."""
    devices = [nbrt.Device("cuda", rank) for rank in range(size)]
    world, bootstraps = thread_world(devices, HANG_TIMEOUT)

    def rank(number: int) -> Any:
        return work(NcclCommunicator(bootstraps[number], devices[number]))

    return on_threads(size, rank, world.fail)


def met(address: str, rank: int, size: int, timeout: float = HANG_TIMEOUT) -> NcclCommunicator:
    """Return the communicator of a rank that meets the others at an address."""
    device = nbrt.Device("cuda", rank)
    return NcclCommunicator(
        device=device, timeout=timeout, rank=rank, world_size=size, address=address
    )


@pytest.mark.parametrize("size", [1, 2])
def test_every_case(nccl: Any, size: int) -> None:
    def work(comm: NcclCommunicator) -> None:
        for case in CASES:
            case(OnDevice(comm))

    on_ranks(size, work)


def test_objects_and_groups_without_mpi(nccl: Any, address: str) -> None:
    def work(rank: int) -> None:
        world = met(address, rank, 2)
        for case in (objects, barriers, groups_of_some_ranks, groups_of_groups_do_not_mix):
            case(OnDevice(world))
        world.close()

    on_threads(2, work)


def test_worlds_one_after_the_other_at_one_address(nccl: Any, address: str) -> None:
    def work(rank: int) -> list[Any]:
        found = []
        for number in range(3):
            world = met(address, rank, 2)
            found.append(world.all_gather_object((number, rank)))
            world.close()
        return found

    every = [[(number, 0), (number, 1)] for number in range(3)]
    assert on_threads(2, work) == [every, every]


def test_ranks_are_told_by_the_environment(
    nccl: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = address.split(":")
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": host, "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    world = dist.init_process_group("nccl", device="cuda:1")
    assert (world.rank, world.size, world.device) == (0, 1, nbrt.Device("cuda", 1))
    assert world.all_gather_object("alone") == ["alone"]
    dist.destroy_process_group()

    monkeypatch.setenv("LOCAL_RANK", "7")
    monkeypatch.setattr(communicator_module, "device_count", lambda kind: 3)
    monkeypatch.setattr(communicator_module, "resolve_device", asked := Asked())
    with pytest.raises(Asked.Error):
        dist.init_process_group("nccl")
    assert asked.devices == [nbrt.Device("cuda", 1)]


class Asked:
    """Takes the device that is asked for, and goes no further."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.devices: list[nbrt.Device] = []

    def __call__(self, device: nbrt.Device) -> nbrt.Device:
        self.devices.append(device)
        raise Asked.Error


def test_ranks_that_disagree_are_named_without_mpi(nccl: Any, address: str) -> None:
    def work(rank: int) -> str:
        world = met(address, rank, 2)
        with pytest.raises(RankMismatchError) as caught:
            world.all_reduce(np.zeros(2 + rank))
        world.close()
        return str(caught.value)

    with config.override(distributed_check=True):
        first, second = on_threads(2, work)
    assert first == second
    assert "rank 1 came to all_reduce(shape=(3,)" in first


def test_ranks_that_do_not_come_for_objects(
    nccl: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = met(address, 0, 1)
    world.timeout = 5
    JumpingClock().install(monkeypatch)
    stream = nbrt.Stream("cuda:0")
    latch = Latch()

    class Hook:
        """Keeps the stream from NCCL, as ranks do that do not come."""

        def before(self, stream: Any, command: Any) -> None:
            if command.kind == "collective":
                latch.hold(stream)

        def after(self, stream: Any, command: Any, result: object) -> None:
            """Nothing more to do."""

    said = r"expected ranks \[0\] within 5 s, where rank 0 waits"
    late = pytest.raises(CollectiveTimeoutError, match=said)
    with latch, nbrt.stream(stream), install_hook(Hook()), late:
        world.barrier()
    with pytest.raises(DistributedError, match="INVALID_ARGUMENT"):  # the communicator is gone
        world.all_reduce(nbrt.zeros(1, device=world.device))
    world.close()


def test_missing_ranks_and_a_missing_store_are_named(
    nccl: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    JumpingClock().install(monkeypatch)
    with pytest.raises(
        CollectiveTimeoutError, match=rf"{address} .*rank 1 waits.*be reached.*rank 0"
    ):
        met(address, 1, 2, 5)

    with pytest.raises(CollectiveTimeoutError, match=rf"{address} .*missing: \[1, 2, 3\]"):
        met(address, 0, 4, 5)


def test_a_failed_start_leaves_the_address_free(
    nccl: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = met(address, 0, 1)
    with pytest.raises(DistributedError, match=rf"free port, got {address} .*in use"):
        met(address, 0, 1)
    first.close()
    real = nccl.NcclCommunicator
    monkeypatch.setattr(nccl, "NcclCommunicator", lambda size, key, rank: real(0, key, rank))
    with pytest.raises(DistributedError, match="INVALID_ARGUMENT"):
        met(address, 0, 1)
    TcpStore(*place(address), True).close()


def place(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


def test_the_store(address: str) -> None:
    server = TcpStore(*place(address), True)
    other = TcpStore(*place(address), False)
    value = bytes(range(128))
    server.set("a" * 60, value)
    assert other.get("a" * 60) == value
    assert other.get("b") is None
    other.set("b", b"")
    other.close()
    assert server.get("b") == b""
    server.close()
    for use in (other.get, lambda key: other.set(key, value)):
        with pytest.raises(OSError, match="refused"):
            use("b")


def test_a_bootstrap_knows_its_rank() -> None:
    (bootstrap,) = thread_world([nbrt.Device("cpu", 0)])[1]
    with pytest.raises(ArgumentError, match="got both"):
        NcclCommunicator(bootstrap, "cpu", rank=0)


def test_what_nccl_reduces_itself(nccl: Any, cuda_interface: CudaInterface) -> None:
    transport = cuda_interface.connect_ranks(0, 0, 1, lambda value: value)
    kinds = ["bool", "i4", "f2", "f4", "c8", "i2", ml_dtypes.bfloat16]
    found = {
        str(np.dtype(kind)): [
            op for op in ("sum", "prod", "min", "max") if transport.reduces(np.dtype(kind), op)
        ]
        for kind in kinds
    }
    every = ["sum", "prod", "min", "max"]
    assert found == {
        "bool": every,
        "int32": every,
        "float16": ["sum", "prod"],
        "float32": ["sum", "prod"],
        "complex64": ["sum"],
        "int16": [],
        "bfloat16": ["sum", "prod"],
    }


def test_operations_are_commands_on_the_current_stream(nccl: Any) -> None:
    seen: list[Any] = []

    class Hook:
        def before(self, stream: Any, command: Any) -> None:
            if command.kind == "collective":
                seen.append((str(stream.device), command.label))

        def after(self, stream: Any, command: Any, result: object) -> None:
            """Nothing more to see."""

    with install_hook(Hook()):
        on_ranks(2, lambda comm: comm.all_reduce(nbrt.zeros(3, device=comm.device)).tolist())
    assert sorted(seen) == [("cuda:0", "all_reduce"), ("cuda:1", "all_reduce")]


def test_ranks_that_disagree_are_named_in_checks(nccl: Any) -> None:
    def work(comm: NcclCommunicator) -> str:
        with pytest.raises(RankMismatchError) as caught:
            comm.all_reduce(given(0, (2,), "f8" if comm.rank == 1 else "f4"))
        return str(caught.value)

    with config.override(distributed_check=True):
        (text, other) = on_ranks(2, work)
    assert "rank 1 came to all_reduce(shape=(2,), dtype=float64, op=sum)" in text
    assert other == text


def test_arrays_of_another_device_are_refused(nccl: Any) -> None:
    def work(comm: NcclCommunicator) -> None:
        for array in (np.ones(3), nbrt.zeros(3, device=f"cuda:{1 - comm.rank}")):
            with pytest.raises(ArgumentError, match=f"expected arrays on cuda:{comm.rank}, .*got"):
                comm.all_reduce(array)

    on_ranks(2, work)


def test_a_group_and_its_end(nccl: Any) -> None:
    def work(comm: NcclCommunicator) -> Any:
        comm.timeout = 7
        found = []
        for group in (comm.group([1, 0]), comm.group([comm.rank])):
            assert group.timeout == 7
            mine = nbrt.full((), comm.rank + 1, device=comm.device)
            found.append((group.ranks, group.rank, int(group.all_reduce(mine))))
            group.close()
            with pytest.raises(DistributedError, match="INVALID_ARGUMENT"):
                group.all_reduce(mine)
        return found

    assert on_ranks(2, work) == [[((1, 0), 1, 3), ((0,), 0, 1)], [((1, 0), 0, 3), ((1,), 0, 2)]]


def test_errors_of_nccl_say_where_and_what_to_do(nccl: Any, cuda_interface: CudaInterface) -> None:
    def work(comm: NcclCommunicator) -> None:
        ones = nbrt.zeros(2 + comm.rank, device=comm.device)
        comm.all_reduce(ones)
        nbrt.current_stream(comm.device).synchronize()
        comm.all_reduce(ones)

    with pytest.raises(DistributedError, match=r"cuda:[01] .*INVALID_USAGE.*; set NCCL_DEBUG"):
        on_ranks(2, work)
    with pytest.raises(DistributedError, match=r"cuda:0 in NcclCommunicator"):
        cuda_interface.connect_ranks(0, 0, 1, lambda key: bytes(128))


def test_the_cuda_backend_connects_on_the_device_of_the_rank(
    nccl: Any, cuda_interface: CudaInterface
) -> None:
    cuda_interface.exchange_device(0)
    shared: list[Any] = []
    transport = cuda_interface.connect_ranks(1, 0, 1, lambda key: shared.append(key) or key)
    assert [len(key) for key in shared] == [128]
    queue = cuda_interface.create_queue(1, 0)
    block = cuda_interface.create_pool(1, "caching", {}).allocate(queue, 8)
    buffer = cuda_interface.as_array(block, (8,), np.dtype("u1"), block.handle(None))
    transport.broadcast(queue, buffer, 0)
    queue.synchronize()
    transport.close()
    assert cuda_interface.current_device() == 0


def test_the_cuda_backend_opens_a_store_where_nccl_is(
    cuda_interface: CudaInterface, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    def missing() -> Any:
        raise BackendUnavailableError("no NCCL")

    monkeypatch.setattr(nccl_module, "load_nccl", missing)
    with pytest.raises(BackendUnavailableError, match="no NCCL"):
        cuda_interface.open_store(*place(address), True)
    monkeypatch.setattr(nccl_module, "load_nccl", lambda: None)
    store = cuda_interface.open_store(*place(address), True)
    store.set("key", b"value")
    assert store.get("key") == b"value"
    store.close()


def test_kinds_without_a_transport_say_what_to_use() -> None:
    (bootstrap,) = thread_world([nbrt.Device("cpu", 0)])[1]
    with pytest.raises(NotSupportedError, match="threads or MPI"):
        NcclCommunicator(bootstrap, "cpu")


def test_a_missing_library_is_named_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy.cuda

    missing = SimpleNamespace(available=False)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", missing)
    monkeypatch.setattr(cupy.cuda, "nccl", missing, raising=False)
    with pytest.raises(BackendUnavailableError, match="pip install nvidia-nccl-cu13"):
        load_nccl()
