"""`warm`: compile, in parallel, all kernels that a function launches."""

from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from nbrt._internal.gpus import GPUS, capability_of, gpu_named, names_of
from nbrt.backends import registry
from nbrt.compilation.pool import AsyncCompile, current_pool
from nbrt.errors import ArgumentError, DeviceError
from nbrt.planning.fake_mode import fake
from nbrt.planning.function import check_runs, runs_nothing
from nbrt.planning.launched_kernels import LaunchedKernels
from nbrt.planning.to_fake import to_fake
from nbrt.planning.warm_compilation import compile_kernels
from nbrt.random.generator import Generator
from nbrt.runtime.device import current_device, resolve_device
from nbrt.runtime.guard import device as device_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.backends.fake.reads import Reads
    from nbrt.planning.fake_mode import FakeMode
    from nbrt.planning.warm_result import WarmResult
    from nbrt.random.stream_position import StreamPosition
    from nbrt.typing import DeviceLike

__all__ = ["collect_kernels", "compile_collected", "warm"]

_TARGETED = "cuda"


def warm(
    function: Callable[..., object],
    /,
    *args: Any,
    targets: Sequence[str] = (),
    device: DeviceLike = None,
    devices: int | None = None,
    reads: Reads = "error",
    workers: int | None = None,
    progress: bool | None = None,
    **kwargs: Any,
) -> WarmResult:
    """Compile all kernels that a function launches, in parallel, without running them.

    The function runs once on fake devices in the place of the CPU and CUDA devices, with fake
    arrays in the place of its arrays. The kernels that it launches, and those of its random draws,
    are then compiled in other processes. The code goes into the folder of compiled kernels
    (``NBRT_CACHE_DIR``), and is loaded, so that the next run of the function compiles nothing.

    Parameters
    ----------
    function : callable
        The program. It runs once; its result is dropped.
    *args, **kwargs
        Its arguments, which become fake by `to_fake`; generators get their states back. Parameters
        of the names below cannot be passed by name.
    targets : sequence of str
        GPUs, such as ``"H100"`` or ``"sm_90"``, to compile for, whether or not they exist here. The
        function sees GPUs of the first kind. The code is stored and not loaded.
    device : Device, str, int or None
        The device that is current for the function. By default the current one; with `targets`
        ``"cuda"``.
    devices : int, optional
        Number of GPUs that the function sees; by default those of this machine, at least one.
    reads : {"error", "zeros"} or callable
        The values that the function reads from an array, as for `nbrt.fake`.
    workers : int, optional
        Number of processes; by default those of the pool that `nbrt.compile` uses.
    progress : bool, optional
        Show a progress bar. By default only if ``sys.stderr`` is a terminal or a notebook.

    Returns
    -------
    result : WarmResult
        A table of the kernels with the time of each compilation. A kernel that does not compile is
        a row with the error; the others compile.

    Raises
    ------
    ArgumentError
        If a GPU is unknown.
    ArgumentTypeError
        If `function` cannot be called, or is a coroutine or generator function: a call of it would
        run nothing.
    DeviceError
        In a block `nbrt.fake`.
    Exception
        Each exception of the function. Nothing is compiled then.

    See Also
    --------
    nbrt.compile : The same for one kernel, by the types of its arguments.

    Notes
    -----
    Kernels of which no code is stored, such as those that refer to objects without a hash, compile
    in this process. Not included are kernels of other kinds of devices, kernels in checked mode,
    kernels of other libraries such as CuPy, and launches that depend on values that the function
    reads. Default generators keep their states; generators that are no arguments move on.

    Examples
    --------
    >>> import nbrt
    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def halve(x):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] /= 2
    >>> def step(n):
    ...     x = nbrt.full(n, 1.0, "float32")
    ...     halve.forall(n)(x)
    >>> with nbrt.device("cpu"):
    ...     result = nbrt.warm(step, 1 << 30, workers=0)
    >>> [(row.kernel, row.block) for row in result]
    [('halve', (256, 1, 1))]
    """
    check_runs(function)
    with (
        _generators_kept((args, kwargs)),
        collect_kernels(targets=targets, device=device, devices=devices, reads=reads) as found,
    ):
        given, named = to_fake((args, kwargs))
        result = function(*given, **named)
        if inspect.iscoroutine(result):
            result.close()
            raise runs_nothing(function, "a coroutine")
        del result, given, named  # arrays end before their devices
    return compile_collected(found, workers=workers, progress=progress)


@contextmanager
def _generators_kept(arguments: object) -> Iterator[None]:
    """Restore the states of generators in arguments after a block."""
    marks = [(position, position.mark()) for position in _positions_in(arguments)]
    try:
        yield
    finally:
        for position, mark in marks:
            position.rewind(mark)


def _positions_in(obj: object) -> Iterator[StreamPosition]:
    if isinstance(obj, Generator):
        yield obj._position
    elif isinstance(obj, dict):
        yield from _positions_in(tuple(obj.values()))
    elif isinstance(obj, (list, tuple)):
        for each in obj:
            yield from _positions_in(each)


@contextmanager
def collect_kernels(
    *,
    targets: Sequence[str] = (),
    device: DeviceLike = None,
    devices: int | None = None,
    reads: Reads = "error",
) -> Iterator[LaunchedKernels]:
    """Replace the CPU and CUDA devices by fake ones for a block, and collect what it launches.

    Parameters
    ----------
    targets, device, devices, reads
        As for `warm`.
    """
    named = names_of(targets)
    if not named:
        label = str(current_device() if device is None else resolve_device(device))
    else:  # whose devices exist in the block
        label = _TARGETED if device is None else str(device)
        if label.partition(":")[0] not in (_TARGETED, "cpu"):
            raise ArgumentError(f"expected a cuda or cpu device with targets, got {device!r}")
    modes = _modes(named, devices, reads)
    found = LaunchedKernels(named)
    with ExitStack() as stack:
        for kind, mode in modes.items():
            real = registry.get_interface_for_device(kind)
            stack.enter_context(mode)
            stack.callback(found.watch(real, registry.get_interface_for_device(kind)))
        stack.enter_context(device_guard(label))
        yield found


def _modes(targets: tuple[str, ...], devices: int | None, reads: Reads) -> dict[str, FakeMode]:
    """Return the fake devices for a machine, by kind."""
    modes = {}
    cpu = registry.get_interface_for_device("cpu")
    for each in (cpu, registry.get_interface_for_device(_TARGETED)):
        if not each.capabilities.computes:
            raise DeviceError(
                f"expected the devices of this machine, which have compilers, got the fake "
                f"{each.name} devices of nbrt.fake; warm outside that block, for its GPU with "
                f"targets="
            )
    if cpu.is_available():
        modes["cpu"] = fake("cpu", devices=cpu.device_count(), reads=reads)
    real = registry.get_interface_for_device(_TARGETED)
    count = real.device_count() if real.is_available() else 0
    if targets:
        for name in targets:
            capability_of(name)
        gpu = _gpu_of(targets[0])
        modes[_TARGETED] = fake(gpu=gpu, devices=devices or max(1, count), reads=reads)
    elif count:
        properties = real.get_device_properties(0)
        modes[_TARGETED] = fake(properties=properties, devices=devices or count, reads=reads)
    return modes


def _gpu_of(name: str) -> str:
    """Return a GPU by its name, or one of a compute capability."""
    try:
        return gpu_named(name).name
    except ArgumentError:
        capability = capability_of(name)
        return next(each.name for each in GPUS.values() if each.capability == capability)


def compile_collected(
    found: LaunchedKernels,
    *,
    workers: int | None = None,
    progress: bool | None = None,
    loads: bool = True,
) -> WarmResult:
    """Compile collected kernels; show the progress; return the table.

    Parameters
    ----------
    found : LaunchedKernels
        The kernels of a block `collect_kernels` that has ended.
    workers, progress
        As for `warm`.
    loads : bool
        Whether this process will launch the kernels.
    """
    if workers is None:
        return compile_kernels(found, current_pool(), progress=progress, loads=loads)
    with AsyncCompile(workers) as pool:
        return compile_kernels(found, pool, progress=progress, loads=loads)
