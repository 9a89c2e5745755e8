"""`Dispatcher`: what ``cuda.jit`` returns; its launches run on CPU devices through nbrt."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections import OrderedDict
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from numba.cuda import launchconfig, typing
from numba.cuda.cext import _dispatcher
from numba.cuda.core import sigutils
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.errors import NumbaError
from numba.cuda.cudadrv import driver
from numba.cuda.dispatcher import _LAUNCH_CONFIG_KW, CUDADispatcher, _Kernel
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.types import Type, none, void

from nbrt.backends.dialect import is_of_dialect
from nbrt.backends.registry import get_interface_for_device
from nbrt.compat.numba_cuda.compile_errors import compile_error
from nbrt.compat.numba_cuda.driver.contexts import COMPUTE_CAPABILITY, KIND
from nbrt.compat.numba_cuda.launch import Launch
from nbrt.compat.numba_cuda.versions import DeviceVersion, KernelVersion, VersionCache
from nbrt.errors import CompileError, DeviceMismatchError, NotSupportedError
from nbrt.runtime.kernel import Kernel
from nbrt.runtime.kernel import kernel as as_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.compat.numba_cuda.driver.binding import Binding
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["Dispatcher", "adopt_dispatchers"]

_MAX_LAUNCHES = 256
_FORALL_BLOCK = 256
_MAX_BOUNDS = 3
_DEVICES = re.compile(r"(got an array of cpu:(\d+)); copy it with nbrt\.to\(array, 'cpu:(\d+)'\)")
_ADOPTED = "_nbrt_dispatcher"
_OPTIONS = frozenset(inspect.signature(_Kernel.__init__).parameters) - {
    "self",
    "py_func",
    "argtypes",
}


class Dispatcher(CUDADispatcher):  # type: ignore[misc]  # numba-cuda is not annotated
    """A kernel or device function in the dialect.

    Parameters
    ----------
    py_func : function
        The Python function.
    targetoptions : dict
        The options of ``cuda.jit``.

    Attributes
    ----------
    binding : Binding
        The driver that launches use; set while the drop-in is installed.
    is_selected : bool
        Whether a launch has selected a version: later ones leave the types to nbrt.
    """

    binding: ClassVar[Binding]

    def __init__(self, py_func: Any, targetoptions: dict[str, Any], **keywords: Any) -> None:
        self._versions: OrderedDict[Any, Any] = OrderedDict()
        self._launched_types: set[tuple[Any, ...]] = set()
        self._gpu_code: OrderedDict[Any, Any] = OrderedDict()
        # For the code that numba-cuda makes for a GPU; a CPU device links nothing.
        links = bool(targetoptions.get("lto")) and driver._have_nvjitlink()
        super().__init__(py_func, {**targetoptions, "lto": links}, **keywords)
        self._launches: dict[Any, Launch] = {}
        self.is_selected = False

    @classmethod
    def _rebuild(cls, **state: Any) -> CUDADispatcher:
        """Rebuild from a pickle, also in a process that has not installed the drop-in.

        Where the default device is a GPU, the result is numba-cuda's dispatcher.
        """
        from nbrt.compat.numba_cuda import install

        install()
        return (cls if hasattr(cls, "binding") else CUDADispatcher)(**state)

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel that launches go through."""
        if is_of_dialect(self.py_func):
            return Kernel(self)  # numba-cuda's own: the program could not mend a fault in it
        return as_kernel(self)  # in checked mode, if the settings say so

    @property
    def is_device(self) -> bool:
        """Whether this is a device function."""
        return bool(self.targetoptions.get("device"))

    @property
    def is_debug(self) -> bool:
        """Whether launches wait, and raise the exceptions of the kernel."""
        return bool(self.targetoptions.get("debug"))

    @property
    def has_silent_exceptions(self) -> bool:
        """Whether an exception of the kernel ends its thread and is not reported, as on CUDA."""
        return not self.is_debug

    @property
    def is_plain(self) -> bool:
        """Whether launches need no more than their arguments as NumPy arrays."""
        return not (self.extensions or self.is_debug or isinstance(self._cache, VersionCache))

    @property
    def max_block(self) -> int | None:
        """The most threads of a block, as ``launch_bounds`` declares."""
        bounds = self.targetoptions.get("launch_bounds")
        if bounds is None or isinstance(bounds, int):
            return bounds
        return int(bounds[0])

    # -- launches ----------------------------------------------------------------------------------

    def __getitem__(self, configuration: Any) -> Launch:
        try:
            return self._launches[configuration]
        except (KeyError, TypeError):
            return self._configured(configuration)

    def _configured(self, configuration: Any) -> Launch:
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
            raise ValueError("must specify at least the griddim and blockdim")
        launch = self.configure(*configuration)
        if len(self._launches) >= _MAX_LAUNCHES:
            self._launches.clear()
        with contextlib.suppress(TypeError):  # a list as grid: not cached
            self._launches[configuration] = launch
        return launch

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Launch:
        """Return the kernel with a launch configuration."""
        grid, block = normalize_kernel_dimensions(griddim, blockdim)
        return Launch(self, grid, block, stream, sharedmem)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        """Return the kernel configured with at least `ntasks` threads in one dimension."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        if ntasks == 0:
            return lambda *_: None
        block = tpb or min(_FORALL_BLOCK, self.max_block or _FORALL_BLOCK)
        return self[-(-ntasks // block), block, stream, sharedmem]

    def call(self, args: tuple[Any, ...], launch_config: Launch) -> None:
        """Launch in a configuration: select the version for the arguments, or make it."""
        if self.is_device:
            raise RuntimeError("Cannot compile a device function as a kernel")
        before = launch_config._push_args(args)
        try:
            if self.specialized:
                version = next(iter(self.overloads.values()))
            else:
                keyword = {_LAUNCH_CONFIG_KW: launch_config}
                version = _dispatcher.Dispatcher._cuda_call(self, *args, **keyword)
            for callback in launch_config.pre_launch_callbacks:
                callback(version, launch_config)
            launch_config.launch(args, version.argument_types)
            if version.argument_types not in self._versions:
                self.add_overload(version, version.argument_types)
            self._launched_types.update(self._types_of_launches())
            self.is_selected = self.is_plain
        finally:
            launch_config._pop_args(before)

    def _compile_for_args(self, *args: Any, **_: Any) -> KernelVersion:
        """Return a new version for arguments (called from C); the launch compiles its code."""
        types = tuple(self.typeof_pyval(value) for value in args)
        self._check_options()
        with global_compiler_lock:
            return self._new_version(types)

    # -- versions ----------------------------------------------------------------------------------

    @property
    def overloads(self) -> OrderedDict[Any, Any]:
        """The versions by the types of their arguments, those of earlier launches included."""
        if _is_for_gpu.get():
            return self._gpu_code
        launched = self._types_of_launches()
        if not launched <= self._launched_types:
            for types in sorted(launched - self._launched_types, key=str):
                self._launched_types.add(types)
                if types not in self._versions:
                    with global_compiler_lock:
                        self.add_overload(self._new_version(types), types)
        return self._versions

    @overloads.setter
    def overloads(self, versions: OrderedDict[Any, Any]) -> None:
        self._versions = versions

    def _types_of_launches(self) -> set[tuple[Any, ...]]:
        """Return the types for which launches have compiled code."""
        kernel = vars(self).get("kernel")
        if kernel is None:
            return set()
        program = kernel.program(get_interface_for_device(KIND))
        types: set[tuple[Any, ...]] = program.compiled_types()
        return types

    def add_overload(self, kernel: Any, argtypes: tuple[Any, ...]) -> None:
        """Enter a version."""
        self._insert([typ._code for typ in argtypes], kernel, cuda=True)
        self._versions[argtypes] = kernel

    def compile(self, sig: Any) -> KernelVersion:
        """Compile for a signature, unless that is done; return the version.

        Raises
        ------
        TypingError
            If the kernel does not compile for these types; or another error of numba-cuda.
        """
        types, result = sigutils.normalize_signature(sig)
        types = tuple(types)
        if result not in (None, none, void):
            raise TypeError("CUDA kernel must have void return type.")
        with global_compiler_lock:
            known: KernelVersion | None
            if self.specialized:
                known = next(iter(self.overloads.values()))
            else:
                known = self.overloads.get(types)
            if known is not None:
                return known
            self._check_options()
            version = self._new_version(types, is_compiled=True)
            self.add_overload(version, types)
            return version

    def _new_version(self, types: tuple[Any, ...], *, is_compiled: bool = False) -> KernelVersion:
        """Return a version from the index on disk, or a new one."""
        stored = self._cache.load_overload(types, self.targetctx)
        if stored is not None:
            self._cache_hits[types] += 1
            # Types from nbrt's cache; a kernel of numba-cuda from one that the program has made.
            is_sensitive = getattr(stored, "launch_config_sensitive", False)
            return KernelVersion(self, types, launch_config_sensitive=is_sensitive)
        self._cache_misses[types] += 1
        if not self._can_compile:
            raise RuntimeError("Compilation disabled")
        if is_compiled:
            self._check_types(types)
        configuration = launchconfig.current_launch_config()
        is_sensitive = configuration is not None and (
            configuration._is_kernel_launch_config_sensitive()
        )
        version = KernelVersion(self, types, launch_config_sensitive=is_sensitive)
        self._cache.save_overload(types, version)
        return version

    def _check_types(self, types: tuple[Any, ...]) -> None:
        from nbrt.backends.cpu.simt.runtime.eager import check_kernel

        try:
            program: Any = self.kernel.program(get_interface_for_device(KIND))
            check_kernel(program.function, program.body, types)
        except Exception as error:
            self.raise_as_numba(error)
            raise

    def _check_options(self) -> None:
        """Raise for options that numba-cuda refuses, and for linked code."""
        options = self.targetoptions
        if self.is_device:
            raise RuntimeError("Cannot compile a device function as a kernel")
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            raise TypeError(
                f"cuda.jit() got an unexpected keyword argument {unknown[0]!r}; expected one of "
                f"{', '.join(sorted(_OPTIONS))}, cache"
            )
        bounds = options.get("launch_bounds")
        if not isinstance(bounds, int | None) and len(bounds) > _MAX_BOUNDS:
            raise ValueError(
                f"Got {len(bounds)} launch bounds: {bounds}; expected at most "
                f"(max_threads_per_block, min_blocks_per_sm, max_blocks_per_cluster)"
            )
        if options.get("link"):
            raise NotSupportedError(
                f"expected a kernel without link= on CPU devices, got {options['link']!r}: PTX and "
                f"CUDA C++ run on a GPU only; write the function in Python, with "
                f"cuda.jit(device=True)"
            )

    def disable_compile(self, val: bool = True) -> None:
        """Refuse types without a version at launches; False: allow them again."""
        super().disable_compile(val)
        if self._launches:  # whose kernel converts to other types
            self._launches.clear()
            self.__dict__.pop("kernel", None)

    def enable_caching(self) -> None:
        """Keep an index of versions on disk, and count its hits; see `stats`."""
        self._cache = VersionCache(self.py_func)

    def specialize(self, *args: Any) -> Dispatcher:
        """Return the kernel for the types of arguments, or for types; there is one for each."""
        types = tuple(
            value if isinstance(value, Type) else self.typeof_pyval(value) for value in args
        )
        if self.specialized:
            raise RuntimeError("Dispatcher already specialized")
        known: Dispatcher | None = self.specializations.get((COMPUTE_CAPABILITY, types))
        if known is None:
            known = type(self)(self.py_func, targetoptions=self.targetoptions)
            known.compile(types)
            known.disable_compile()
            known._specialized = True
            self.specializations[COMPUTE_CAPABILITY, types] = known
        return known

    # -- device functions --------------------------------------------------------------------------

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile a device function for argument types, unless that is done; return the version."""
        types = tuple(args)
        if _is_for_gpu.get():
            return super().compile_device(types, return_type)
        if types not in self._versions:
            from nbrt.backends.cpu.simt.runtime.eager import device_result

            try:
                result = device_result(self, types, return_type)
            except Exception as error:
                self.raise_as_numba(error)
                raise
            self._versions[types] = DeviceVersion(self, typing.signature(result, *types))
        return self._versions[types]

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how numba-cuda's compiler types a call of this function."""
        if not self._can_compile:
            for types, version in list(self._versions.items()):
                self.gpu_code_of(types, version.signature.return_type)
        with _compiling_for_gpu():
            return super().get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return the function that numba-cuda's compiler calls for a signature."""
        return self.gpu_code_of(tuple(sigutils.normalize_signature(sig)[0])).entry_point

    def gpu_code_of(self, types: tuple[Any, ...], result: Any = None) -> Any:
        """Return numba-cuda's compile result of a device function; compile it if need be."""
        with _compiling_for_gpu():
            return super().compile_device(types, result)

    # -- errors ------------------------------------------------------------------------------------

    def raise_as_numba(self, error: Exception) -> None:
        """Raise an error of a launch with the class and names of numba-cuda; return otherwise."""
        if isinstance(error, CompileError):
            if not isinstance(error, NumbaError):
                raise compile_error(error) from error
        elif isinstance(error, DeviceMismatchError):
            text = _DEVICES.sub(
                r"\1; copy it, with cuda.to_device(array.copy_to_host()) while cuda.gpus[\3] is "
                r"selected, or launch while cuda.gpus[\2] is",
                str(error),
            )
            if text != str(error):
                raise DeviceMismatchError(text) from error


def adopt_dispatchers(patches: Patches) -> None:
    """Let dispatchers that numba-cuda made before the installation launch on CPU devices."""
    for name in ("__getitem__", "configure", "forall", "specialize"):
        method = getattr(Dispatcher, name)

        def adopted(
            dispatcher: CUDADispatcher, *args: Any, _method: Any = method, **kw: Any
        ) -> Any:
            return _method(_adopted(dispatcher), *args, **kw)

        patches.set(CUDADispatcher, name, functools.wraps(method)(adopted))


def _adopted(dispatcher: CUDADispatcher) -> Dispatcher:
    other: Dispatcher | None = vars(dispatcher).get(_ADOPTED)
    if other is None:
        other = Dispatcher(dispatcher.py_func, dispatcher.targetoptions)
        if not dispatcher._can_compile:
            for types in dispatcher.overloads:
                other.compile(types)
            other.disable_compile()
            other._specialized = dispatcher.specialized
        vars(dispatcher)[_ADOPTED] = other
    return other


_is_for_gpu: ContextVar[bool] = ContextVar("is_for_gpu", default=False)
"""Whether the running code is numba-cuda's compiler, whose device functions have GPU code."""


@contextlib.contextmanager
def _compiling_for_gpu() -> Iterator[None]:
    token = _is_for_gpu.set(True)
    try:
        yield
    finally:
        _is_for_gpu.reset(token)
