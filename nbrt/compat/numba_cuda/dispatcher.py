"""`Dispatcher`: what ``cuda.jit`` returns; its launches run on CPU devices through nbrt."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import numba
import numba.core.errors
from numba.cuda.core import errors, sigutils
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.errors import normalize_kernel_dimensions

from nbrt.compat.numba_cuda.driver.binding import Binding
from nbrt.compat.numba_cuda.launch import Launch
from nbrt.errors import CompileError, UnsupportedConstructError
from nbrt.runtime.kernel import Kernel

__all__ = ["Dispatcher"]

_MAX_LAUNCHES = 256
_FORALL_BLOCK = 256


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
    declared_signatures : list of tuple of numba types
        Argument types of the explicit signatures; launches convert to them.
    """

    binding: ClassVar[Binding]

    def __init__(self, py_func: Any, targetoptions: dict[str, Any], **keywords: Any) -> None:
        super().__init__(py_func, targetoptions, **keywords)
        self.declared_signatures: list[tuple[Any, ...]] = []
        self._launches: dict[Any, Launch] = {}

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel that launches go through."""
        return Kernel(self)

    @property
    def is_plain(self) -> bool:
        """Whether launches need no more than their arguments as NumPy arrays."""
        return not (self.declared_signatures or self.extensions or self.targetoptions.get("debug"))

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
        try:
            self._launches[configuration] = launch
        except TypeError:
            pass  # a list as grid: not cached
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
        block = tpb or _FORALL_BLOCK
        return self[-(-ntasks // block), block, stream, sharedmem]

    def call(self, args: tuple[Any, ...], launch_config: Launch) -> None:
        """Launch in a configuration."""
        launch_config.launch(args)

    def compile(self, sig: Any) -> None:
        """Take an explicit signature."""
        argtypes, _ = sigutils.normalize_signature(sig)
        self.declared_signatures.append(tuple(argtypes))
        self.overloads[tuple(argtypes)] = self

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Take an explicit signature of a device function; return its result type."""
        from numba.cuda import typing

        if return_type is None:
            typed = numba.njit(self.py_func)
            typed.compile(args)
            return_type = typed.overloads[args].signature.return_type
        self.overloads[args] = SimpleNamespace(signature=typing.signature(return_type, *args))

    def specialize(self, *args: Any) -> Dispatcher:
        """Return the kernel for the types of arguments."""
        return self

    def raise_as_numba(self, error: Exception) -> None:
        """Raise an error of the compiler as numba-cuda's class of error; return otherwise."""
        if isinstance(error, UnsupportedConstructError) or not isinstance(error, CompileError):
            return
        cause = error.__cause__
        name = type(cause).__name__ if hasattr(errors, type(cause).__name__) else "TypingError"
        bases = (getattr(errors, name), getattr(numba.core.errors, name))
        kind = type(name, tuple(dict.fromkeys(bases)), {})
        raise kind(f"{error}\n{cause or ''}") from error
