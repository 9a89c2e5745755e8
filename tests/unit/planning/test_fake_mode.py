"""`nbrt.fake`: devices that exist for a block, and the state of the real ones after it."""

from __future__ import annotations

import contextvars
import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends import registry
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    DeviceError,
    DeviceMismatchError,
    FakeReadError,
    LaunchError,
    OutOfMemoryError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@nbrt.kernel
def axpy(a: float, x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


KINDS = pytest.mark.parametrize("kind", ["cuda", "cpu"])


@KINDS
def test_devices_exist_for_the_block(kind: str) -> None:
    before = nbrt.current_device(), nbrt.device_count(kind), registry.get_interface_for_device(kind)
    with nbrt.fake(kind, devices=3):
        assert nbrt.is_available(kind)
        assert nbrt.device_count(kind) == 3
        assert nbrt.current_device() == nbrt.Device(kind, 0)
        with nbrt.device(f"{kind}:2"):
            x = nbrt.zeros((4, 5), "float64")
        assert (x.shape, x.dtype, x.device) == ((4, 5), np.float64, nbrt.Device(kind, 2))
        assert nbrt.device_of(x) == nbrt.Device(kind, 2)
        with pytest.raises(UnknownDeviceError, match="devices="):
            nbrt.zeros(1, device=f"{kind}:3")
    after = nbrt.current_device(), nbrt.device_count(kind), registry.get_interface_for_device(kind)
    assert after == before


def test_a_gpu_has_its_properties() -> None:
    with nbrt.fake("cuda", gpu="L4"):
        found = nbrt.get_device_properties("cuda:0")
    assert (found.multi_processor_count, found.compute_capability) == (58, (8, 9))
    assert 20 << 30 < found.total_memory < 25 << 30


def test_own_properties() -> None:
    own = nbrt.DeviceProperties("own", 1 << 30, 7, max_threads_per_block=64)
    with nbrt.fake("cuda", properties=own):
        assert nbrt.get_device_properties("cuda:0") is own
        x = nbrt.zeros(100, device="cuda:0")
        with pytest.raises(LaunchError, match="64 threads"):
            axpy[1, 128](1.0, x, x)


def test_streams_memory_and_generators_come_back() -> None:
    stream = nbrt.Stream("cpu:0")
    held = nbrt.zeros(1000, device="cpu:0")
    allocated = nbrt.memory_stats("cpu:0")["allocated_bytes.all.current"]
    nbrt.manual_seed(7, "cpu:0")
    state = nbrt.random.get_state("cpu:0")
    with nbrt.stream(stream):
        with nbrt.fake("cpu:0"):
            assert nbrt.current_stream("cpu:0").interface is not stream.interface
            assert nbrt.memory_stats("cpu:0").get("allocated_bytes.all.current", 0) == 0
            assert nbrt.random.get_state("cpu:0").tolist() == state.tolist()
            nbrt.random.rand(100, device="cpu:0")
            assert nbrt.random.get_state("cpu:0").tolist() != state.tolist()
        assert nbrt.current_stream("cpu:0") is stream
    assert nbrt.random.get_state("cpu:0").tolist() == state.tolist()
    assert nbrt.memory_stats("cpu:0")["allocated_bytes.all.current"] == allocated
    assert held.sum() == 0


def test_seeds_reach_fewer_devices_than_there_are_real_ones() -> None:
    for index in range(nbrt.device_count("cpu")):
        nbrt.random.rand(4, device=f"cpu:{index}")
    with nbrt.fake("cpu:0"), nbrt.random.fork_rng():
        nbrt.manual_seed(3)
        assert nbrt.default_generator("cpu:0").state == nbrt.Generator(3, device="cpu:0").state


@KINDS
def test_an_exception_restores_everything(kind: str) -> None:
    interface = registry.get_interface_for_device(kind)
    with pytest.raises(ZeroDivisionError), nbrt.fake(kind), nbrt.device(f"{kind}:0"):
        raise ZeroDivisionError
    assert registry.get_interface_for_device(kind) is interface
    assert nbrt.zeros(1, device="cpu:0").tolist() == [0.0]


def test_modes_nest() -> None:
    with nbrt.fake("cuda", gpu="L4"):
        x = nbrt.zeros(8, device="cuda:0")
        with nbrt.fake("cuda", gpu="A100", devices=2):
            assert nbrt.device_count("cuda") == 2
            assert nbrt.get_device_properties("cuda:0").multi_processor_count == 108
            with pytest.raises(DeviceMismatchError):
                axpy.forall(8)(1.0, x, nbrt.zeros(8))
            with nbrt.fake("cpu:0"):
                assert isinstance(nbrt.zeros(2, device="cpu:0"), type(x))
        assert nbrt.get_device_properties("cuda:0").multi_processor_count == 58
        axpy.forall(8, stream=nbrt.current_stream("cuda:0"))(1.0, x, x)


def test_a_mode_is_entered_again_after_its_end() -> None:
    mode = nbrt.fake("cuda", gpu="L4")
    with mode:
        nbrt.zeros(1 << 20, device="cuda:0")
        with pytest.raises(DeviceError, match="not entered"):
            mode.__enter__()
    with mode as plan:
        nbrt.zeros(256, device="cuda:0")
    assert plan.peak == 1024


def test_threads_see_the_devices() -> None:
    found: list[str] = []
    with nbrt.fake("cuda", devices=2):
        thread = threading.Thread(
            target=lambda: found.append(str(nbrt.device_of(nbrt.zeros(3, device="cuda:1"))))
        )
        thread.start()
        thread.join()
    assert found == ["cuda:1"]


def in_thread(function: Callable[[], object]) -> Exception | None:
    """Run a function in another thread; return its exception."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  # handed to the caller
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return failures[0] if failures else None


def test_one_thread_at_a_time_enters_modes_of_a_kind() -> None:
    def enter(kind: str) -> None:
        with nbrt.fake(kind, devices=5):
            assert nbrt.device_count(kind) == 5

    with nbrt.fake("cuda", devices=2), nbrt.fake("cuda", devices=3):
        refusal = in_thread(lambda: enter("cuda"))
        assert isinstance(refusal, DeviceError)
        assert "another thread" in str(refusal)
        assert nbrt.device_count("cuda") == 3
        assert in_thread(lambda: enter("cpu")) is None
        # A context that was copied inside of the block nests in it.
        contextvars.copy_context().run(enter, "cuda")
    assert in_thread(lambda: enter("cuda")) is None


def test_modes_end_in_any_order() -> None:
    before = registry.get_interface_for_device("cuda")
    first, second = nbrt.fake("cuda", devices=2), nbrt.fake("cuda", devices=5)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert nbrt.device_count("cuda") == 5
    second.__exit__(None, None, None)
    assert registry.get_interface_for_device("cuda") is before


def test_a_mode_ends_where_it_was_entered() -> None:
    device = nbrt.current_device()
    mode = nbrt.fake("cuda", devices=3)
    with pytest.raises(DeviceError, match="not in use"):
        mode.__exit__(None, None, None)
    mode.__enter__()
    refusal = in_thread(lambda: mode.__exit__(None, None, None))
    assert isinstance(refusal, DeviceError)
    assert "the fake devices remain" in str(refusal)
    assert (nbrt.device_count("cuda"), nbrt.current_device().kind) == (3, "cuda")
    mode.__exit__(None, None, None)
    assert nbrt.current_device() == device
    with pytest.raises(DeviceError, match="not in use"):
        mode.__exit__(None, None, None)


def test_a_mode_of_a_thread_that_has_ended_ends_anywhere() -> None:
    before = registry.get_interface_for_device("cuda")
    mode = nbrt.fake("cuda")
    assert in_thread(mode.__enter__) is None
    mode.__exit__(None, None, None)
    assert registry.get_interface_for_device("cuda") is before


def sizes_allocated(found: dict[str, Any]) -> list[int]:
    return [
        event["size"]
        for trace in found["device_traces"]
        for event in trace
        if event["action"] == "alloc"
    ]


def test_histories_are_of_the_devices_of_their_start() -> None:
    nbrt.zeros(1, device="cpu:0")
    with nbrt.memory.memory_history() as real:
        nbrt.empty(1000, "uint8", device="cpu:0")
        with nbrt.fake("cpu"):
            nbrt.empty(2000, "uint8", device="cpu:0")
            assert sizes_allocated(nbrt.memory.snapshot("cpu:0")) == []
            with nbrt.memory.memory_history() as fake:
                x = nbrt.empty(3000, "uint8", device="cpu:0")
                assert sizes_allocated(nbrt.memory.snapshot("cpu:0")) == [3000]
            inner = nbrt.memory.memory_history()
            inner.__enter__()
        del x
        nbrt.empty(4000, "uint8", device="cpu:0")
        inner.__exit__(None, None, None)
        assert sizes_allocated(nbrt.memory.snapshot("cpu:0")) == [1000, 4000]
        assert nbrt.memory.snapshot("cpu:0")["device_traces"][0]
    actions = [(event.action, event.nbytes) for event in real.events() if event.nbytes < 9999]
    assert [nbytes for action, nbytes in actions if action == "alloc"] == [1000, 4000]
    assert [nbytes for action, nbytes in actions if action == "free_requested"] == [1000, 4000]
    assert [event.nbytes for event in fake.events() if event.action == "alloc"] == [3000]


def test_kernels_keep_nothing_of_ended_blocks() -> None:
    configured = axpy[1, 8]
    interfaces: list[weakref.ref[Any]] = []
    for kind in ("cuda", "cpu") * 2:
        with nbrt.fake(kind):
            x = nbrt.zeros(8, device=f"{kind}:0")
            axpy.forall(8)(1.0, x, x)
            configured(1.0, x, x)
            interfaces.append(weakref.ref(registry.get_interface_for_device(kind)))
        del x
    with nbrt.device("cpu:0"):
        y = nbrt.full(8, 1.0)
        configured(2.0, y, y)
    gc.collect()
    assert [each() for each in interfaces] == [None] * 4
    assert nbrt.to_host(y).tolist() == [3.0] * 8


@KINDS
def test_reads_are_refused_with_the_line(kind: str) -> None:
    with nbrt.fake(kind):
        x = nbrt.zeros(4, device=f"{kind}:0")
        if kind == "cuda":
            with pytest.raises(TypeError, match="to_host"):  # as of CuPy's arrays
                np.asarray(x)
        for read in (float, int, bool, lambda a: a.item(), lambda a: a.tolist()):
            with pytest.raises(FakeReadError, match=r"test_fake_mode\.py:\d+"):
                read(x[0])
        host = nbrt.to_host(x)
        assert (host.shape, host.dtype) == ((4,), np.float32)
        with pytest.raises(FakeReadError):
            float(host[0])
        into = np.ones(4, np.float32)
        with pytest.raises(FakeReadError):
            nbrt.copy(into, x)
        assert into.tolist() == [1.0] * 4


@KINDS
def test_reads_are_answered_by_policy(kind: str) -> None:
    with nbrt.fake(kind, reads="zeros"):
        x = nbrt.full(4, 3.0, device=f"{kind}:0")
        assert float(nbrt.to_host(x)[0]) == 0.0
        into = np.ones(4)
        nbrt.copy(into, x)
        assert into.tolist() == [0.0] * 4

    def answer(array: Any) -> Any:
        return np.arange(array.size).reshape(array.shape)

    with nbrt.fake(kind, reads=answer):
        x = nbrt.zeros((2, 2), "float32", device=f"{kind}:0")
        assert np.asarray(nbrt.to_host(x)).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    with nbrt.fake(kind, reads=lambda _: [1, 2, 3]), pytest.raises(FakeReadError, match="shape"):
        float(nbrt.zeros(2, device=f"{kind}:0")[0])


def test_memory_is_enforced_on_request() -> None:
    with nbrt.fake("cuda", gpu="L4") as plan:
        nbrt.empty(1 << 40, "uint8", device="cuda:0")
    assert plan.peak == 1 << 40
    with nbrt.fake("cuda", gpu="L4", enforce_memory=True):
        nbrt.empty(10 << 30, "uint8", device="cuda:0")
        with pytest.raises(OutOfMemoryError):
            nbrt.empty(1 << 40, "uint8", device="cuda:0")
        nbrt.memory.set_memory_limit(1 << 30, "cuda:0")
        with pytest.raises(OutOfMemoryError):
            nbrt.empty(2 << 30, "uint8", device="cuda:0")


def test_arrays_of_an_ended_block_are_refused_by_name() -> None:
    with nbrt.fake("cpu:0"):
        x = nbrt.zeros(4, device="cpu:0")
    uses: tuple[Callable[[], object], ...] = (
        lambda: x + 1,
        lambda: nbrt.asarray(x, device="cpu:0"),
        lambda: nbrt.to_host(x),
        lambda: np.asarray(x),
        lambda: axpy.forall(4, stream=nbrt.current_stream("cpu:0"))(1.0, x, x),
    )
    for use in uses:
        with pytest.raises(DeviceError, match="ended"):
            use()
    assert "shape=(4,)" in repr(x)


def uses_of(x: Any, kind: str) -> tuple[Callable[[], object], ...]:
    return (
        lambda: nbrt.to_host(x),
        lambda: nbrt.asarray(x, device=f"{kind}:0"),
        lambda: nbrt.to(x, "cpu:0"),
        lambda: nbrt.copy(np.ones(4), x),
        lambda: nbrt.copy(x, np.ones(4)),
        lambda: np.asarray(x),
    )


@KINDS
def test_arrays_of_another_block_are_refused_with_the_reason(kind: str) -> None:
    device = f"{kind}:0"
    with nbrt.fake(kind) as outer:
        x = nbrt.zeros(4, device=device)
        with nbrt.fake(kind, reads="zeros") as inner:
            for use in uses_of(x, kind):
                with pytest.raises(DeviceMismatchError, match="block around it"):
                    use()
            if kind == "cuda":
                with pytest.raises(DeviceMismatchError, match="block around it"):
                    x.get()
                with pytest.raises(DeviceMismatchError):
                    x + nbrt.zeros(4, device=device)
        assert (x + x).shape == nbrt.to_host(x).shape
    with nbrt.fake("cpu"):
        for use in (*uses_of(x, "cpu"), x.get):
            with pytest.raises(DeviceError, match="ended"):
                use()
    assert outer.peak > 0
    assert inner.peak <= 512


def test_fake_and_real_arrays_do_not_mix() -> None:
    real = nbrt.zeros(4, device="cpu:0")
    with nbrt.fake("cuda"):
        fake = nbrt.zeros(4, device="cuda:0")
        with pytest.raises(DeviceMismatchError, match=r"cpu:0|NumPy"):
            axpy.forall(4, stream=nbrt.current_stream("cuda:0"))(1.0, real, fake)
        with pytest.raises(DeviceMismatchError, match="cuda:0"):
            axpy.forall(4, stream=nbrt.current_stream("cpu:0"))(1.0, fake, real)
        with pytest.raises(DeviceMismatchError):
            fake + real
        nbrt.copy(fake, real)


def test_host_data_is_lifted_and_copied() -> None:
    kinds: list[str] = []

    class Hook:
        def before(self, stream: Any, command: Any, /) -> None:
            kinds.append(f"{command.kind} on {stream.device}")

        def after(self, stream: Any, command: Any, result: Any, /) -> None:
            pass

    with nbrt.fake("cuda"), nbrt.runtime.commands.install_hook(Hook()):
        x = nbrt.asarray(1, device="cuda")
    assert (x.shape, x.dtype) == ((), np.int64)
    assert kinds[:2] == ["allocate on cuda:0", "copy on cuda:0"]


class RealCudaArray:
    """An array of a CUDA device, as another library shows it."""

    shape, dtype = (3,), np.dtype("float32")
    __cuda_array_interface__ = {  # noqa: RUF012  # as CuPy has it
        "shape": (3,), "typestr": "<f4", "data": (512, False), "version": 3,
    }  # fmt: skip


def test_arrays_of_real_devices_are_lifted_on_request() -> None:
    with (
        nbrt.fake("cuda", only_lift_cpu_arrays=True),
        pytest.raises(DeviceMismatchError, match="only_lift_cpu_arrays"),
    ):
        nbrt.asarray(RealCudaArray(), device="cuda:0")
    with nbrt.fake("cuda", only_lift_cpu_arrays=False):
        found = nbrt.asarray(RealCudaArray(), device="cuda:0")
        assert (found.shape, found.dtype, str(found.device)) == ((3,), np.float32, "cuda:0")


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("tpu",), {}, ArgumentError),
        ((3,), {}, ArgumentTypeError),
        ((), {"gpu": "H9000"}, ArgumentError),
        (("cpu",), {"gpu": "H100"}, ArgumentError),
        ((), {"devices": 0}, ArgumentError),
        ((), {"devices": 1.5}, ArgumentTypeError),
        (("cuda:3",), {"devices": 2}, ArgumentError),
        ((), {"reads": "ones"}, ArgumentError),
        ((), {"properties": 3}, ArgumentTypeError),
        ((), {"gpu": 3}, ArgumentTypeError),
        ((), {"enforce_memory": "no"}, ArgumentTypeError),
        ((), {"compile": "yes"}, ArgumentTypeError),
        ((), {"compile": np.zeros(3)}, ArgumentTypeError),
        ((), {"only_lift_cpu_arrays": "no"}, ArgumentTypeError),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        nbrt.fake(*arguments, **options)


def test_no_driver_is_touched() -> None:
    program = """
import sys, nbrt
with nbrt.fake("cuda", gpu="H100", devices=8):
    x = nbrt.zeros((1 << 20, 1 << 20), device="cuda:7")
    nbrt.to_host((x @ x.T)[:2])
print("cupy" in sys.modules, any(name.startswith("cuda.bindings") for name in sys.modules))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_streams_of_the_block_do_not_outlive_it() -> None:
    with nbrt.fake("cuda"):
        stream = nbrt.Stream("cuda:0")
    with pytest.raises((DeviceError, BackendUnavailableError)), nbrt.stream(stream):
        nbrt.zeros(4)


def test_arrays_that_live_to_the_end_of_the_process_leave_no_message() -> None:
    program = """
import nbrt
with nbrt.fake("cuda"):
    kept = [nbrt.zeros(1000), nbrt.zeros(1 << 20)]
with nbrt.fake("cpu"):
    kept += [nbrt.zeros(1000), nbrt.zeros(1 << 20)]
raise SystemExit("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == "the end\n"
