"""`nbrt.compile`, and launches that do not wait for their compilation (``NBRT_ASYNC``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from nbrt._internal.gpus import names_of
from nbrt.backends.argument_specs import argument_lists, example_of
from nbrt.backends.code_store.folder import cache_directory
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.compile_jobs import CompileJob
from nbrt.backends.interface import PreparablePlan
from nbrt.backends.registry import get_interface_for_device
from nbrt.compilation.pool import current_pool, launch_pool
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    NotSupportedError,
)
from nbrt.runtime.deferral import defer
from nbrt.runtime.device import current_device, interface_of, lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface, Plan, Program
    from nbrt.compilation.future import CompileFuture
    from nbrt.typing import DeviceLike

__all__ = ["compile", "compile_ahead", "defer_until_compiled"]

_TARGETED = "cuda"
"""The kind of device whose models `targets` names."""


def compile(  # the public name
    kernel: Any,
    *specs: Any,
    grid: Any = 1,
    block: Any = 256,
    shared: int = 0,
    device: DeviceLike = None,
    targets: Sequence[str] = (),
) -> CompileFuture[Any]:
    """Compile a kernel for launches to come, in other processes; the call does not wait.

    The code goes into the folder of compiled kernels (``NBRT_CACHE_DIR``), where launches of this
    and of other programs find it. A launch whose code is being compiled waits for it.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    *specs
        The arguments of a launch: arrays, of which only the type matters, numbers, objects with the
        attributes `shape` and `dtype`, Numba types, or names of types such as ``"float32[::1]"``.
        Or any number of signatures: ``"void(float32[::1], int32)"``, signatures of Numba, tuples of
        Numba types.
    grid, block, shared
        The launch, as in ``kernel[grid, block, stream, shared]``. Code for a CPU device depends on
        the block.
    device : Device, str, int or None
        The device of the launches; the current one by default.
    targets : sequence of str
        GPUs, such as ``"H100"`` or ``"sm_90"``, to compile for, whether or not they exist here. The
        code is stored and not loaded.

    Returns
    -------
    future : CompileFuture
        Its ``result()`` waits, loads the code, and returns the configured kernel,
        ``kernel[grid, block, None, shared]``. It has the methods of `concurrent.futures.Future`.

    Raises
    ------
    ArgumentError
        If a signature, the name of a type, or a GPU is unknown.
    ArgumentTypeError
        If `kernel` is no `Kernel`, or an argument is missing or of a type that kernels cannot take.
    LaunchError
        If the device cannot run the configuration.
    NotSupportedError
        In a daemonic process of `multiprocessing`, which must not have children.

    Notes
    -----
    ``result()`` raises `CompileError` if the kernel does not compile. On a kind of device that
    compiles in the process only, and for kernels that cannot be stored, it compiles; with `targets`
    it raises `NotSupportedError` if the code is not stored.

    Examples
    --------
    >>> import nbrt
    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def shift(x, step):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] += step
    >>> future = nbrt.compile(
    ...     shift, "void(int64[::1], int64)", "void(float32[::1], float32)", block=4, device="cpu"
    ... )
    >>> with nbrt.device("cpu:0"):
    ...     x = nbrt.zeros(4, "int64")
    ...     future.result()(x, 3)
    >>> x
    array([3, 3, 3, 3])
    """
    if not hasattr(kernel, "forall"):
        raise ArgumentTypeError(
            f"expected an nbrt.Kernel to compile, got {kernel!r} of type {type(kernel).__name__}; "
            f"decorate the function with nbrt.kernel"
        )
    return compile_ahead(kernel[grid, block, None, shared], specs, device, targets)


def compile_ahead(
    configured: Any, specs: Sequence[Any], device: DeviceLike, targets: Sequence[str]
) -> CompileFuture[Any]:
    """Compile a configured kernel, as `compile` does."""
    lists = argument_lists(specs)
    launch = (_sizes(configured.grid), configured.block, configured.shared)
    kernel = configured.kernel
    jobs: list[CompileJob] = []
    if targets:
        named = names_of(targets)
        models = get_interface_for_device(_kind_with_models(device))
        for args in lists:
            found = models.compile_jobs(kernel.function, 0, *launch, args, named, stored=True)
            jobs += found or [CompileJob(models.name, "", kernel.__qualname__, b"", is_stored=True)]
        new = [job for job in jobs if not job.is_stored]
        return _submit(new, lambda: _stored(configured, jobs), kernel.__qualname__)
    chosen = _device_of(configured, device)
    interface = interface_of(chosen)
    interface.lazy.ensure()
    program = kernel.program(interface)
    plan = configured.plan_on(chosen, interface, program)
    if kernel.check is None:  # checked code is not stored
        for args in lists:
            jobs += interface.compile_jobs(program, chosen.index, *launch, args)

    def load() -> Any:
        if isinstance(plan, PreparablePlan):
            for args in lists:
                plan.prepare(args)
        return configured

    return _submit(jobs, load, kernel.__qualname__)


def _stored(configured: Any, jobs: Sequence[CompileJob]) -> Any:
    """Return a kernel; raise `NotSupportedError` if code for other machines is not stored."""
    for job in jobs:
        if not job.key:
            raise NotSupportedError(
                f"expected a kernel whose code can be stored for other machines, got {job.label}; "
                f"the guide lists such kernels, page 'Compiled code'"
            )
        if not CodeStore(job.kind).has(job.key):
            raise NotSupportedError(
                f"expected to store the code of {job.label}, got a folder that does not take it: "
                f"{cache_directory()}; set NBRT_CACHE_DIR to a folder of your own"
            )
    return configured


def _submit(jobs: list[CompileJob], load: Callable[[], Any], label: str) -> CompileFuture[Any]:
    """Let the current pool compile; load now what no other process compiles."""
    pool = current_pool()
    future = pool.submit(jobs, load, label)
    is_unstored = any(end is not None and end.status == "unstored" for end in future.outcomes)
    if future.done() and (is_unstored or not pool.workers):
        future.exception()
    return future


def _kind_with_models(device: DeviceLike) -> str:
    """Return the kind of device that `targets` are models of, which may be unavailable here."""
    kind = str(_TARGETED if device is None else device).partition(":")[0]
    if kind != _TARGETED:
        raise ArgumentError(
            f"expected a {_TARGETED} device, or none, for targets, got {device!r}; leave one of "
            f"the two out"
        )
    return kind


def _device_of(configured: Any, device: DeviceLike) -> Device:
    if device is not None:
        try:
            return lookup(device)[0]
        except BackendUnavailableError as error:
            if str(device).partition(":")[0] == _TARGETED:
                error.add_note("To compile without a device, name its model: targets=['sm_90'].")
            raise
    stream = configured.stream
    return current_device() if stream is None else cast("Device", stream.device)


def _sizes(grid: tuple[int, ...]) -> Any:
    return tuple(max(1, size) for size in grid)


def defer_until_compiled(
    configured: Any, stream: Any, program: Program, plan: Plan, args: tuple[Any, ...]
) -> None:
    """Compile a launch in other processes if it is new, and defer the stream's commands until then.

    Raises
    ------
    ArgumentTypeError, DeviceMismatchError
        As the launch does.
    """
    deferral = stream.deferral
    if configured.kernel.check is not None or (deferral is not None and deferral.is_mine):
        return
    is_prepared = getattr(plan, "is_prepared", None)
    if is_prepared is not None and is_prepared(stream.queue, args):
        return
    pool = launch_pool()
    if pool is None:
        return
    interface: DeviceInterface = stream.interface
    examples = tuple(map(example_of, args))
    launch = (_sizes(configured.grid), configured.block, configured.shared)
    jobs = interface.compile_jobs(program, stream.device.index, *launch, examples)
    if jobs:
        future = pool.submit(jobs, _load_nothing, configured.kernel.__qualname__)
        if not future.done():
            defer(stream, future.wait)


def _load_nothing() -> None:
    """Leave the loading to the launch."""
