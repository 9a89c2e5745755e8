"""nbrt under the names of ``numba.cuda``: what a test written for numba-cuda needs to run on it.

Kernels and device functions stay what they are; only the launch is replaced. The host side (device
arrays, streams, events, contexts) is the one that the CUDA simulator brings, in which device memory
is host memory: a kernel gets the NumPy array behind it.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import numba.core.errors
import numpy as np
from numba import cuda
from numba.cuda import api, bf16, compiler, decorators, fp16, types  # noqa: F401  # see `install`
from numba.cuda.args import ArgHint, In
from numba.cuda.core import errors, sigutils
from numba.cuda.cudadrv import devicearray, devices, driver
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.memory_management.nrt import _nrt_mstats, rtsys
from numba.cuda.simulator import api as host
from numba.cuda.simulator.cudadrv import devicearray as host_arrays
from numba.cuda.simulator.cudadrv import devices as host_devices
from numba.cuda.typing.typeof import Purpose, typeof

import nbrt
from nbrt.backends import dialect
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.frontend import overloads
from tests.conformance import rules

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["USES", "install"]

USES = "NBRT_CONFORMANCE_USES"
"""Names the file that grows by a byte with every use of nbrt, also in processes of a test."""

COMPUTE_CAPABILITY = (9, 0)
"""What tests that need a minimum are told: nothing that a kernel can say is missing."""

_HOST = {
    host: (
        "select_device stream default_stream legacy_default_stream per_thread_default_stream "
        "synchronize close detect list_devices get_current_device event defer_cleanup"
    ),
    host_arrays: (
        "device_array device_array_like pinned pinned_array pinned_array_like mapped_array "
        "managed_array to_device"
    ),
    host_devices: "gpus require_context",
}
_FORALL_BLOCK = 128


class Dispatcher(CUDADispatcher):
    """The result of ``cuda.jit``: numba-cuda's dispatcher, launched by nbrt."""

    def __init__(self, py_func: Any, targetoptions: dict[str, Any], **keywords: Any) -> None:
        for option, reason in rules.OPTIONS.items():
            if targetoptions.get(option):
                rules.refuse(reason)
        super().__init__(py_func, targetoptions, **keywords)
        self.overloads = Overloads(self)
        self._declared: list[tuple[Any, ...]] = []
        self.returns: dict[Any, Any] = {}

    @functools.cached_property
    def kernel(self) -> nbrt.Kernel:
        return nbrt.kernel(self.py_func)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        grid, block = normalize_kernel_dimensions(griddim, blockdim)
        return Launch(self, grid, block, sharedmem)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or _FORALL_BLOCK
        return Launch(self, (-(-ntasks // block), 1, 1), (block, 1, 1), sharedmem)

    def specialize(self, *args: Any) -> Dispatcher:
        return self

    def compile(self, sig: Any) -> None:
        """Take an explicit signature: compile for it, so that an error shows where it would."""
        _note_use()
        signature = sigutils.normalize_signature(sig)[0]
        self._declared.append(signature)
        try:
            CpuProgram(self.py_func, cache=False).entry((1, 1, 1)).compile(
                (types.int64, *signature)
            )
        except (nbrt.errors.CompileError, numba.core.errors.NumbaError) as error:
            _raise_as_numba(error)

    def compile_device(self, args: Any, return_type: Any = None) -> None:
        self._declared.append(tuple(args))
        self.returns[tuple(args)] = return_type

    def disable_compile(self, val: bool = True) -> None:
        """Do nothing: compiling is nbrt's, and it only ever compiles for one launch."""

    def launch(self, grid: Any, block: Any, shared: int, *args: Any) -> None:
        _note_use()
        values = [_host_value(value) for value in self._extended(args)]
        if self._declared:
            values = _as_declared(self._declared, values)
        try:
            with nbrt.device("cpu"):
                self.kernel[grid, block, 0, shared](*values)
        except nbrt.errors.CompileError as error:
            _raise_as_numba(error)

    def _extended(self, args: tuple[Any, ...]) -> list[Any]:
        """Let the dispatcher's argument extensions replace arguments, as a launch does."""
        replaced = []
        for value in args:
            for extension in reversed(self.targetoptions.get("extensions") or ()):
                _, value = extension.prepare_args(typeof(value), value, stream=0, retr=[])
            replaced.append(value)
        return replaced


@dataclass
class Launch:
    """A dispatcher with a configuration."""

    dispatcher: Dispatcher
    griddim: Any
    blockdim: Any
    sharedmem: int

    def __call__(self, *args: Any) -> None:
        self.dispatcher.launch(self.griddim, self.blockdim, self.sharedmem, *args)


class Overloads(dict[Any, Any]):
    """In place of the table of compiled versions, which nbrt keeps for itself.

    Only the result types of device functions are there: numba-cuda's ufuncs ask for them.
    """

    def __init__(self, owner: Dispatcher) -> None:
        super().__init__()
        self._owner = owner

    def __getitem__(self, signature: Any) -> Any:
        if not self._owner.targetoptions.get("device"):
            rules.refuse(rules.OVERLOADS)
        typed = numba.njit(self._owner.py_func)
        declared = self._owner.returns.get(tuple(signature))
        typed.compile(declared(*signature) if declared else signature)
        return typed.overloads[signature]


def _note_use() -> None:
    if USES in os.environ:
        with open(os.environ[USES], "ab") as file:
            file.write(b"1")


def _refused(reason: str) -> Callable[..., NoReturn]:
    return lambda *_, **__: rules.refuse(reason)


def _host_value(value: Any) -> Any:
    """Return the argument of a CPU launch for that of a CUDA launch."""
    if isinstance(value, ArgHint):
        # What comes in only must not change on the host, where a kernel would write into it.
        value = value.value.copy() if isinstance(value, In) else value.value
    if hasattr(value, "__cuda_array_interface__"):
        value = _as_device_array(value)
    return value._ary if isinstance(value, host_arrays.FakeCUDAArray) else value


def _device_array(
    shape: Any, strides: Any, dtype: Any, stream: Any = 0, gpu_data: Any = None
) -> Any:
    """Make a device array as numba-cuda's own host code does: on memory that is there."""
    strides = np.empty(shape, dtype).strides if strides is None else strides
    shape, strides = (tuple(np.atleast_1d(given).tolist()) for given in (shape, strides))
    memory = np.empty(shape, dtype) if gpu_data is None else gpu_data.view(dtype)
    return host_arrays.FakeCUDAArray(np.lib.stride_tricks.as_strided(memory, shape, strides))


def _as_device_array(value: Any, sync: bool = True) -> Any:
    if isinstance(value, host_arrays.FakeCUDAArray):
        return value
    described = type("Memory", (), {"__array_interface__": value.__cuda_array_interface__})()
    described.owner = value
    return host_arrays.FakeCUDAArray(np.asarray(described))


def _as_declared(declared: list[tuple[Any, ...]], values: list[Any]) -> list[Any]:
    """Convert scalars to the types of the explicit signature that fits best, as numba-cuda does."""
    found = [typeof(value, Purpose.argument) for value in values]
    fitting = [signature for signature in declared if len(signature) == len(values)]
    if not fitting:
        return values
    best = max(fitting, key=lambda s: sum(a == b for a, b in zip(s, found, strict=True)))
    return [_converted(value, typ) for value, typ in zip(values, best, strict=True)]


def _converted(value: Any, typ: Any) -> Any:
    if isinstance(typ, (types.Number, types.Boolean)) and np.ndim(value) == 0:
        return np.asarray(value).astype(str(typ))[()]
    return value


def _raise_as_numba(error: Exception) -> NoReturn:
    """Raise what a test expects of a kernel that does not compile: Numba's own class of error."""
    is_numba = isinstance(error, numba.core.errors.NumbaError)
    cause: Any = error if is_numba else error.__cause__
    if isinstance(error, nbrt.errors.UnsupportedConstructError):
        raise error
    name = type(cause).__name__ if hasattr(errors, type(cause).__name__) else "TypingError"
    bases = (getattr(errors, name), getattr(numba.core.errors, name))
    raise type(name, tuple(dict.fromkeys(bases)), {})(f"{error}\n{cause or ''}") from error


def install() -> None:
    """Put nbrt under ``numba.cuda``, for this process.

    The modules of numba-cuda that link CUDA C++ for themselves are imported by then.
    """
    host_devices._SIMULATOR_CC = COMPUTE_CAPABILITY
    for source, names in _HOST.items():
        for name in names.split():
            for target in (cuda, api, devices, devicearray):
                if hasattr(target, name):
                    setattr(target, name, getattr(source, name))
    for name in dir(host_arrays):
        if hasattr(devicearray, name) and not name.startswith("__"):
            setattr(devicearray, name, getattr(host_arrays, name))
    _give_addresses()
    device = SimpleNamespace(MAX_THREADS_PER_BLOCK=1024)
    driver.get_device = lambda: device
    driver.driver.get_device = lambda *_: device
    cuda.current_context = api.current_context = host_devices.get_context
    devices.get_context = host_devices.get_context
    for name, value in (("is_available", True), ("is_supported_version", True)):
        setattr(cuda, name, lambda value=value: value)
    decorators.CUDADispatcher = Dispatcher
    for name in ("memsys_enable_stats", "memsys_disable_stats"):
        setattr(rtsys, name, lambda: None)
    rtsys.get_allocation_stats = lambda: _nrt_mstats(0, 0, 0, 0)
    is_owned = dialect.is_of_dialect
    # The tests are part of the package numba.cuda; what they define is not of the dialect.
    own = lambda value: is_owned(value) and ".tests." not in value.__module__  # noqa: E731
    dialect.is_of_dialect = overloads.is_of_dialect = own
    for module, functions in ((cuda, "numba.cuda"), (compiler, "numba.cuda.compiler")):
        for name, reason in rules.FUNCTIONS[functions].items():
            if hasattr(module, name):
                setattr(module, name, _refused(reason))
    for name, reason in rules.METHODS.items():
        setattr(Dispatcher, name, _refused(reason))
    for name in ("__iter__", "__len__", "keys", "values", "items"):
        setattr(Overloads, name, _refused(rules.OVERLOADS))


def _give_addresses() -> None:
    """Let the simulator's arrays tell where their memory is, for ufuncs and foreign arrays."""
    array = host_arrays.FakeCUDAArray
    array.gpu_data = property(lambda self: self._ary)
    array.__cuda_array_interface__ = property(
        lambda self: {**self._ary.__array_interface__, "version": 3, "strides": self._ary.strides}
    )
    cuda.as_cuda_array = api.as_cuda_array = _as_device_array
    devicearray.DeviceNDArray = _device_array
