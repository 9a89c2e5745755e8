"""Kernels on fake devices: launches are checked as on the real device, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends.argument_keys import NUMBERS, scalar_key
from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.versions import Version
from nbrt.backends.occupancy import max_threads_by_registers, occupancy_of
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import BackendUnavailableError, DeviceMismatchError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from types import FunctionType

    from nbrt.backends.captures import Captures
    from nbrt.backends.fake.array import FakeMemory
    from nbrt.backends.inspection import (
        DeviceCode,
        HostCode,
        KernelCode,
        Lowering,
        Occupancy,
        Resources,
    )
    from nbrt.backends.interface import DeviceProperties
    from nbrt.backends.programs import Check
    from nbrt.backends.queue import Queue
    from nbrt.typing import Dim3

__all__ = [
    "CompiledKernel",
    "FakeCpuProgram",
    "FakePlan",
    "FakeProgram",
    "Inspect",
    "example_of",
    "key_of",
]

_MAX_VERSIONS = 256
_MAX_INT = 2**63 - 1
_NUMBERS = NUMBERS | {int}

_Compilations = dict["Hashable", "KernelCode"]
_versions: dict[tuple[Any, Hashable], tuple[Captures, _Compilations]] = {}
"""Kernel and target -> its captured values, and its code by the key of the arguments' types."""


class Inspect(Protocol):
    """`DeviceInterface.inspect` of the kind of device that a fake one stands for."""

    def __call__(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        grid: Dim3,
        block: Dim3,
        shared: int,
        target: str | None,
        /,
    ) -> Any:
        """Return a `HostCode` or a `DeviceCode`."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel compiled for the model of a fake device and for the types of its arguments.

    Attributes
    ----------
    signature : str
        The kernel's name, its parameters and their types.
    code : HostCode or DeviceCode
        The code: ``ptx`` for CUDA, ``llvm`` and ``asm`` for a CPU.
    resources : Resources or None
        Registers, shared memory and spills on a GPU; None without ptxas, and on a CPU.
    occupancy : Occupancy or None
        Blocks and warps that fit on one multiprocessor of the GPU.
    lowering : Lowering or None
        How the CPU compiler cut the kernel.
    missing : str
        The reason why `resources` or `occupancy` is None on CUDA, with the next step.
    """

    signature: str
    code: KernelCode
    resources: Resources | None = None
    occupancy: Occupancy | None = None
    lowering: Lowering | None = None
    missing: str = ""


class FakeProgram:
    """A kernel for fake devices.

    Parameters
    ----------
    function : callable
        The kernel, or a ``cuda.jit`` dispatcher of it.
    kind : {"cpu", "cuda"}
        The kind of device.
    properties : DeviceProperties
        The properties of the devices.
    memories : sequence of FakeMemory
        The memory of each device.
    inspect : callable
        `DeviceInterface.inspect` of the real kind; it checks the types of arguments, and compiles.
    target : str, optional
        The GPU that kernels are compiled for, such as ``"H100 SXM"`` or ``"sm_90"``.
    compiles : bool, default False
        Compile the kernel at the first launch for each list of argument types.

    Attributes
    ----------
    captures : Captures
        The values of globals, closure variables and attributes that the kernel captures.

    Raises
    ------
    ArgumentTypeError
        If `function` is not a function.
    CompileError
        If it is of a kind that a kernel cannot be, such as a generator.
    """

    def __init__(
        self,
        function: Callable[..., object],
        kind: str,
        properties: DeviceProperties,
        memories: Sequence[FakeMemory],
        inspect: Inspect,
        *,
        target: str | None = None,
        compiles: bool = False,
    ) -> None:
        self.function = function
        self.kind = kind
        self.properties = properties
        self.memories = memories
        self.target = target
        self.compiles = compiles
        self._inspect = inspect
        code: KernelCode = inspect(function, (), (1, 1, 1), (1, 1, 1), 0, target)
        self.captures: Captures = code.captures
        python: Any = getattr(function, "py_func", function)  # a function: others have no captures
        self.name = python.__qualname__
        self._code = python.__code__
        self._compiled = _compilations(python, self.captures, (kind, target))

    def __repr__(self) -> str:
        return f"<FakeProgram {self.name}>"

    def plan(self, index: int, grid: Dim3, block: Dim3, shared: int) -> FakePlan:
        """Fix a configuration."""
        return FakePlan(self, index, grid, block, shared)

    def parameter(self, position: int) -> str:
        """Return the name of a parameter; that of ``*args`` from its position on."""
        code = self._code
        names = code.co_varnames[: code.co_argcount + bool(code.co_flags & 4)]
        return names[min(position, len(names) - 1)] if names else "?"

    def takes(self, count: int) -> bool:
        """Return whether the kernel takes this number of arguments."""
        code, function = self._code, getattr(self.function, "py_func", self.function)
        least = code.co_argcount - len(function.__defaults__ or ())
        return count >= least and (bool(code.co_flags & 4) or count <= code.co_argcount)

    def check(self, args: tuple[Any, ...], block: Dim3) -> None:
        """Raise ArgumentTypeError if the number or a type of the arguments does not fit."""
        code: KernelCode = self._inspect(self.function, args, (1, 1, 1), block, 0, self.target)
        code.signature  # noqa: B018  # checks

    def compiled(
        self, key: Hashable, args: tuple[Any, ...], grid: Dim3, block: Dim3, shared: int
    ) -> CompiledKernel:
        """Return the kernel compiled for arguments of a key."""
        # Code for a GPU does not depend on the block, code for a CPU does.
        known = (key, block) if self.kind == "cpu" else key
        code = self._compiled.get(known)
        if code is None:
            made: KernelCode = self._inspect(self.function, args, grid, block, shared, self.target)
            made.signature  # noqa: B018  # wrong types are no errors of the compiler
            code = self._compiled.setdefault(known, made)
        if self.kind == "cpu":
            host: HostCode = code  # type: ignore[assignment]  # by its kind
            return CompiledKernel(code.signature, code, lowering=host.lowering)
        return self._on_gpu(code, block, shared)  # type: ignore[arg-type]  # by its kind

    def _on_gpu(self, code: DeviceCode, block: Dim3, shared: int) -> CompiledKernel:
        code.ptx  # noqa: B018  # compiles, which needs no ptxas
        try:
            resources = code.resources
        except BackendUnavailableError as error:
            return CompiledKernel(code.signature, code, missing=str(error))
        threads = block[0] * block[1] * block[2]
        capability = self.properties.compute_capability or (8, 0)
        try:
            occupancy = occupancy_of(capability, resources, threads, shared)
        except NotSupportedError as error:
            return CompiledKernel(code.signature, code, resources, missing=str(error))
        return CompiledKernel(code.signature, code, resources, occupancy)


class FakeCpuProgram(FakeProgram):
    """A kernel for fake CPU devices, where checked launches find no fault: nothing is accessed."""

    def checked_plan(
        self,
        index: int,
        grid: Dim3,
        block: Dim3,
        shared: int,
        check: Check,
    ) -> FakePlan:
        """Fix a configuration, as `plan` does."""
        return FakePlan(self, index, grid, block, shared, is_checked=True)


class FakePlan:
    """A kernel with its configuration on one fake device.

    Attributes
    ----------
    sees_numbers : bool
        The forms of launches that it reports differ by the numbers among the arguments, too.
    """

    __slots__ = (
        "_index",
        "_is_checked",
        "_known",
        "_latest",
        "_memory",
        "_program",
        "block",
        "grid",
        "sees_numbers",
        "shared",
    )

    def __init__(
        self,
        program: FakeProgram,
        index: int,
        grid: Dim3,
        block: Dim3,
        shared: int,
        *,
        is_checked: bool = False,
    ) -> None:
        self._program = program
        self._is_checked = is_checked
        self._index = index
        self._memory = program.memories[index]
        self.grid = grid
        self.block = block
        self.shared = shared
        self.sees_numbers = False
        # The types of arguments for which this configuration is valid.
        self._known: dict[Hashable, CompiledKernel | None] = {}
        # Types and shapes of the latest arguments.
        self._latest: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<FakePlan {self._program.name}[{self.grid}, {self.block}]>"

    @property
    def index(self) -> int:
        """Index of the device."""
        return self._index

    @property
    def name(self) -> str:
        """Name of the kernel."""
        name: str = self._program.name
        return name

    @property
    def function(self) -> Callable[..., object]:
        """The kernel, or a ``cuda.jit`` dispatcher of it."""
        return self._program.function

    @property
    def compiled_kernels(self) -> tuple[CompiledKernel, ...]:
        """The code for the types of the launches so far, if launches compile."""
        return tuple(kernel for kernel in list(self._known.values()) if kernel is not None)

    @property
    def local_memory(self) -> int | None:
        """Bytes of local memory of a thread; None if no launch compiled, or ptxas is missing."""
        known = [kernel.resources for kernel in self.compiled_kernels]
        return max((used.stack for used in known if used is not None), default=None)

    def compiled(self, args: tuple[Any, ...]) -> CompiledKernel | None:
        """Return the compiled kernel of an earlier launch with arguments of these types.

        None if there was none, or if launches do not compile.
        """
        return self._known.get(key_of(args))

    def launch(self, queue: Queue, *args: Any) -> None:
        """Check the launch as the real device does; compute nothing.

        Raises
        ------
        ArgumentTypeError
            If the number or a type of the arguments does not fit.
        CompileError
            If launches compile, and the kernel does not compile for these types.
        DeviceMismatchError
            If an array is of another device, real or fake.
        LaunchError
            If the compiled kernel needs more registers or shared memory than the device has.
        """
        # As `key_of`, but with shapes, and without calls: a launch takes about a microsecond.
        form = [
            given.known_form or given.form()
            if (kind := given.__class__) is FakeArray
            else kind
            if kind in NUMBERS or (kind is int and -_MAX_INT <= given <= _MAX_INT)
            else _other_key(given)
            for given in args
        ]
        if self.sees_numbers:
            form += [given for given in args if given.__class__ in _NUMBERS]
        latest = self._latest
        if form != latest or queue.index != self._index:
            self._check(queue, key_of(args), args)
            self._latest = latest = form
        if not isinstance(queue, SynchronousQueue):
            queue.put(self, *args)
        elif (on_launch := self._memory.on_launch) is not None:
            on_launch(self, args, latest)

    def __call__(self, *args: Any) -> None:
        """Do nothing: a fake device computes nothing."""

    def _check(self, queue: Queue, key: Hashable, args: tuple[Any, ...]) -> None:
        program = self._program
        device = Device(program.kind, self._index)
        if queue.index != self._index:
            raise DeviceMismatchError(
                f"expected a stream of {device}, for which the launch was planned, got {queue!r}; "
                f"plan it for the stream's device"
            )
        if key in self._known:
            return
        # Numbers of arguments that do not fit are refused below, with the kernel's parameters.
        if program.takes(len(args)):
            for position, array in _arrays_in(args):
                self._check_array(device, position, array)
        examples = tuple(map(example_of, args))
        if not program.compiles:
            program.check(examples, self.block)
            self._known[key] = None
            on_version = self._memory.on_version
            if on_version is not None and not self._is_checked:
                launch = (self._index, self.grid, self.block, self.shared)
                on_version(Version(program, program.function, *launch, examples, key_of(examples)))
            return
        kernel = program.compiled(key, examples, self.grid, self.block, self.shared)
        used = kernel.resources
        if used is not None:
            limit = max_threads_by_registers(used.registers)
            program.properties.check_kernel(
                program.name, self.block, self.shared, limit, used.static_shared
            )
        self._known[key] = kernel

    def _check_array(self, device: Device, position: int, array: Any) -> None:
        """Raise DeviceMismatchError if an array is not one of the device."""
        is_fake = isinstance(array, FakeArray)
        if is_fake and array.memory is self._memory:
            return
        if device.kind == "cpu" and _is_host_array(array, self._index):
            return
        if not is_fake:
            library = "NumPy" if isinstance(array, np.ndarray) else type(array).__module__
            got = f"a real array of {library}"
        elif not array.memory.is_active:
            got = "an array of a fake device whose nbrt.fake block has ended"
        elif array.memory.is_host and array.memory.device.kind != "cpu":
            got = "a fake NumPy array"
        elif array.memory.device == device:
            got = f"an array of the fake {device} of another nbrt.fake block"
        else:
            got = f"a fake array of {array.memory.device}"
        raise DeviceMismatchError(
            f"expected argument {position} ({self._program.parameter(position)}) on the fake "
            f"device {device}, where the kernel runs, got {got}; copy it with "
            f"nbrt.to(array, '{device}')"
        )


def key_of(args: tuple[Any, ...]) -> tuple[Hashable, ...]:
    """Return a key of the arguments' types; arrays of one key lie in the same memory."""
    return tuple([_array_key(a) if a.__class__ is FakeArray else _other_key(a) for a in args])


def _array_key(array: FakeArray) -> Hashable:
    memory, is_unowned, dtype, shape, flags = array.form()
    return memory, is_unowned, dtype, len(shape), flags


def _other_key(argument: Any) -> Hashable:
    key = scalar_key(argument)
    if key is not None:
        return key
    if isinstance(argument, np.ndarray):
        return np.ndarray, argument.dtype, argument.ndim, argument.flags.num
    kind: Hashable = argument.__class__
    return (kind, key_of(argument)) if isinstance(argument, tuple) else kind


def _arrays_in(args: tuple[Any, ...]) -> Iterator[tuple[int, Any]]:
    """Return the arrays of all libraries in arguments, with the argument's position."""
    for position, argument in enumerate(args):
        items = [argument]
        while items:
            item = items.pop()
            if isinstance(item, tuple):
                items += item
            elif _is_array(item):
                yield position, item


def _is_array(value: object) -> bool:
    if isinstance(value, (FakeArray, np.ndarray)):
        return True
    if isinstance(value, np.generic):
        return False
    return hasattr(value, "__dlpack_device__") or hasattr(value, "__cuda_array_interface__")


def _is_host_array(array: Any, index: int) -> bool:
    """Return whether a kernel of CPU device `index` takes an array of host memory."""
    if not isinstance(array, FakeArray):
        return isinstance(array, np.ndarray)
    if not array.memory.is_host or not array.memory.is_active:
        return False
    # An array that no pool of a device holds is an array of the host alone.
    memory = array.memory
    return memory.device.kind != "cpu" or array.handle is None or memory.device.index == index


def example_of(argument: Any) -> Any:
    """Return a NumPy array of the same type in place of a fake array."""
    if isinstance(argument, tuple):
        items = map(example_of, argument)
        return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
    if not isinstance(argument, FakeArray):
        return argument
    layout = argument.layout
    flags, ndim = layout.flags, layout.ndim
    if flags.c_contiguous or ndim == 0:
        example = np.zeros((1,) * ndim, layout.dtype)
    elif flags.f_contiguous:
        example = np.zeros((2, 2) + (1,) * (ndim - 2), layout.dtype, order="F")
    else:
        example = np.zeros((4,) + (1,) * (ndim - 1), layout.dtype)[::2]
    example.flags.writeable = flags.writeable
    return example


def _compilations(function: FunctionType, captures: Captures, target: Hashable) -> _Compilations:
    """Return the code of a kernel for one target, which blocks of `nbrt.fake` share."""
    known = _versions.get((function, target))
    if known is not None and known[0].agrees(captures):
        return known[1]
    if len(_versions) >= _MAX_VERSIONS:
        _versions.clear()
    compilations: _Compilations = {}
    _versions[function, target] = captures, compilations
    return compilations
