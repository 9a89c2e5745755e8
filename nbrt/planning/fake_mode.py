"""`fake`: a block in which the devices of a kind exist without hardware."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from nbrt._internal import scopes
from nbrt._internal.checks import checked_bool, checked_int
from nbrt._internal.device import Device
from nbrt._internal.gpus import gpu_named
from nbrt.backends import registry
from nbrt.backends.fake.interface import FakeInterface
from nbrt.backends.fake.properties import gpu_properties
from nbrt.backends.fake.reads import ReadPolicy
from nbrt.backends.interface import DeviceProperties
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceError
from nbrt.planning.plan import MemoryPlan
from nbrt.runtime.array import copy, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.fake.reads import Reads
    from nbrt.typing import DeviceLike

__all__ = ["FakeMode", "fake"]

_KINDS = ("cuda", "cpu")
_DEFAULT_GPU = "H100 SXM"
_MAX_DEVICES = 4096


class FakeMode:
    """A block whose devices of one kind are fake; `fake` makes it.

    ``with`` returns the `MemoryPlan` of the block. A mode can be entered again after its end, with
    new devices and a new plan.
    """

    def __init__(
        self,
        device: Device,
        properties: DeviceProperties,
        gpu: str | None,
        count: int,
        **options: Any,
    ) -> None:
        self.device = device
        self.kind = device.kind
        self.properties = properties
        self.gpu = gpu
        self.count = count
        self._options = options
        self._stack: ExitStack | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MemoryPlan:
        if self._stack is not None:
            raise DeviceError(
                "expected a fake mode that is not entered, got one in use; call nbrt.fake again"
            )
        options = dict(self._options)
        lifts = not options.pop("only_lift_cpu_arrays")
        policy = ReadPolicy(options.pop("reads"))
        interface = FakeInterface(
            self.kind,
            self.properties,
            self.count,
            policy,
            _Library(),
            registry.get_interface_for_device(self.kind).inspect,
            target=self.gpu,
            lifts_devices=lifts,
            **options,
        )
        devices = tuple(Device(self.kind, index) for index in range(self.count))
        plan = MemoryPlan(self.kind, devices, self.properties, self.gpu, interface.assumptions)
        with ExitStack() as stack:
            stack.callback(_substitute(interface, self))
            _push_frame(self, self.device)
            stack.callback(scopes.pop_frame, self)
            plan._start()
            stack.callback(plan._stop, policy.lines)
            self._stack = stack.pop_all()
        self._thread = threading.current_thread()
        return plan

    def __exit__(self, *failure: object) -> None:
        if self._stack is None or self._thread is None:
            raise DeviceError("expected a fake mode that is entered, got one that is not in use")
        is_here = self._thread is threading.current_thread() and _is_in_context(self)
        if self._thread.is_alive() and not is_here:
            raise DeviceError(
                f"expected the end of a fake mode where it was entered, in the same context of "
                f"{self._thread.name}, got an end in {threading.current_thread().name}; the fake "
                f"devices remain"
            )
        stack, self._stack, self._thread = self._stack, None, None
        stack.close()

    def __repr__(self) -> str:
        return f"<nbrt.fake {self.count} x {self.gpu or self.properties.name} as {self.kind}>"


def fake(
    device: DeviceLike = "cuda",
    *,
    gpu: str | None = None,
    properties: DeviceProperties | None = None,
    devices: int | None = None,
    reads: Reads = "error",
    compile: bool = False,  # the name of the option
    enforce_memory: bool = False,
    only_lift_cpu_arrays: bool | None = None,
) -> FakeMode:
    """Make devices of a kind exist for a block, without hardware, driver or memory.

    In the block, devices of this kind have the properties of the given GPU. Streams, events, pools,
    generators, graphs, meshes, kernels, copies and collectives work, arrays have shapes and dtypes
    but no values, and nothing is computed. The block yields a `MemoryPlan`.

    Parameters
    ----------
    device : {"cuda", "cpu"} or Device
        The kind of device, and the device that is current in the block; ``"cuda:3"`` makes four
        devices unless `devices` says otherwise.
    gpu : str, optional
        A GPU by name, such as ``"H100 SXM"`` or ``"L4"``; the H100 SXM by default.
    properties : DeviceProperties, optional
        The properties of the devices, instead of those of a known GPU.
    devices : int, optional
        Number of devices.
    reads : {"error", "zeros"} or callable
        The values that the host reads from a fake array: none (`FakeReadError`), zeros, or those
        that a function of the array returns.
    compile : bool
        Compile each launched kernel for the GPU and check its resources.
    enforce_memory : bool
        Allocations beyond the memory of a device raise `OutOfMemoryError`. By default they succeed,
        so that the plan tells how much is missing.
    only_lift_cpu_arrays : bool, optional
        Only host arrays become fake arrays; arrays of real GPUs raise `DeviceMismatchError`. By
        default True unless the real devices work here. Arrays of real CPU devices are host arrays,
        so that it has no effect on them.

    Returns
    -------
    mode : FakeMode
        To be used by ``with``.

    Raises
    ------
    ArgumentError
        If the kind, the GPU or the policy of reads is unknown, or options contradict each other.
    ArgumentTypeError
        If an argument is of another type.

    Notes
    -----
    The devices exist for the whole process, with all of its threads. Therefore one thread at a time
    enters a mode of a kind: while another thread or task is in one, entering raises `DeviceError`.
    A mode ends in the thread and context that entered it. Blocks nest.

    Real devices of the kind, their streams, memory and generators return at the end of the block,
    also after an exception. In the block, default generators start with the states of the real
    ones.

    Work is done when it is submitted. So memory that another stream uses is free as soon as it is
    freed.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.fake("cuda", gpu="L4") as plan:
    ...     x = nbrt.empty((1 << 20, 1 << 10), "float32")
    ...     y = x[:, :512] + 1
    >>> y
    FakeArray(shape=(1048576, 512), dtype=float32, device='cuda:0')
    >>> plan.peak, plan.fits("L4")
    (6442450944, True)
    """
    wanted = _checked_device(device)
    if properties is not None:
        if not isinstance(properties, DeviceProperties):
            raise ArgumentTypeError(f"expected DeviceProperties, got {properties!r}")
        if gpu is not None:
            raise ArgumentError("expected a GPU or properties, got both; drop one of them")
    elif wanted.kind == "cpu":
        if gpu is not None:
            raise ArgumentError(f"expected no GPU for cpu devices, got {gpu!r}; pass properties")
        properties = registry.get_interface_for_device("cpu").get_device_properties(0)
    else:
        gpu = gpu_named(_DEFAULT_GPU if gpu is None else gpu).name
        properties = gpu_properties(gpu)
    count = wanted.index + 1 if devices is None else checked_int("devices", devices)
    if not wanted.index < count <= _MAX_DEVICES:
        raise ArgumentError(
            f"expected between {wanted.index + 1} and {_MAX_DEVICES} devices, got {count}"
        )
    ReadPolicy(reads)  # checks
    lifts_only_cpu = (
        not _works(wanted.kind)
        if only_lift_cpu_arrays is None
        else checked_bool("only_lift_cpu_arrays", only_lift_cpu_arrays)
    )
    return FakeMode(
        wanted,
        properties,
        gpu,
        count,
        reads=reads,
        compiles=checked_bool("compile", compile),
        enforces=checked_bool("enforce_memory", enforce_memory),
        only_lift_cpu_arrays=lifts_only_cpu,
    )


def _checked_device(device: DeviceLike) -> Device:
    if not isinstance(device, (str, Device)):
        raise ArgumentTypeError(
            f"expected a kind of device, 'cuda' or 'cpu', got {device!r} of type "
            f"{type(device).__name__}"
        )
    wanted = Device(device) if isinstance(device, str) else device
    if wanted.kind not in _KINDS:
        raise ArgumentError(f"expected a kind of device, 'cuda' or 'cpu', got {wanted.kind!r}")
    return wanted


def _works(kind: str) -> bool:
    return registry.get_interface_for_device(kind).is_available()


_lock = threading.RLock()
_entered: list[tuple[FakeInterface, FakeMode, Callable[[], None]]] = []


def _is_in_context(mode: FakeMode) -> bool:
    """Return whether the running context has entered a mode."""
    frame: scopes.ContextFrame | None = scopes.current()
    while frame is not None and frame.guard is not mode:
        frame = frame.parent
    return frame is not None


def _check_enters_within(kind: str) -> None:
    """Raise DeviceError if another thread or context uses fake devices of a kind."""
    with _lock:
        modes = [mode for interface, mode, _ in _entered if interface.name == kind]
        if not all(map(_is_in_context, modes)):
            raise DeviceError(
                f"expected no fake {kind} devices of another thread or task, got {modes[-1]!r}, "
                f"which it has entered; fake devices exist for the whole process: let one thread "
                f"enter nbrt.fake, and others wait for its end"
            )


def _substitute(interface: FakeInterface, mode: FakeMode) -> Callable[[], None]:
    """Put fake devices in the place of a kind; return a function that ends them.

    Modes may end in another order than the reverse of their beginnings; then the devices of the
    last one that has not ended exist.
    """
    with _lock:
        _check_enters_within(interface.name)
        restore = registry.substitute_interface(interface.name, interface)
        _entered.append((interface, mode, restore))

    def end() -> None:
        with _lock:
            interface.end()
            while _entered and not _entered[-1][0].is_active:
                _entered.pop()[2]()

    return end


def _push_frame(mode: FakeMode, device: Device) -> None:
    """Make a fake device current, and leave the streams and pools of real ones of its kind."""
    frame = scopes.current()
    scopes.push(
        mode,
        device,
        {key: value for key, value in frame.streams.items() if key.kind != device.kind},
        pools={key: value for key, value in frame.pools.items() if key.kind != device.kind},
    )


class _Library:
    """The functions of the runtime that methods of fake arrays call."""

    def empty(self, shape: tuple[int, ...], dtype: Any, device: Device) -> Any:
        return empty(shape, dtype, stream=current_stream(device))

    def to_host(self, array: Any) -> Any:
        return to_host(array)

    def copy(self, destination: Any, source: Any) -> None:
        copy(destination, source)

    def is_current(self, interface: FakeInterface) -> bool:
        return registry.get_interface_for_device(interface.name) is interface
