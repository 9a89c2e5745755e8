"""CuPy on the simulated CUDA driver.

CuPy calls the CUDA runtime through one of its modules, `cupy_backends.cuda.api.runtime`, into which
NVIDIA's static runtime library is linked. That library works with NVIDIA's driver only. Here the
functions that the module publishes, to Python and (as C functions in capsules) to CuPy's other
modules, are replaced by functions that call the driver API, with the semantics that the CUDA
documentation gives to the runtime API.

The signatures of the C functions are read from the capsules. If one is not known, the import of
CuPy fails with its name.

- `hook` changes modules when they are imported.
- `signatures` reads signatures of CuPy's functions and of the C files here.
- `trampolines` writes the C functions that CuPy and Python call.
- `devices.c`, `memory.c`, `streams.c` are the functions of the runtime; `objects.c` converts.
- `library` builds the C files, `bridge` puts them into CuPy's module.
- `refusals` lets modules of CuPy that only work on a GPU raise, and `sorting` replaces one of them.
"""

from __future__ import annotations

from simulated_cuda.cupy_runtime.bridge import replace_runtime
from simulated_cuda.cupy_runtime.hook import ModuleChanges
from simulated_cuda.cupy_runtime.refusals import REFUSALS, NotSimulatedError
from simulated_cuda.cupy_runtime.signatures import SignatureError
from simulated_cuda.cupy_runtime.sorting import replace_thrust

__all__ = ["RUNTIME", "NotSimulatedError", "SignatureError", "install"]

RUNTIME = "cupy_backends.cuda.api.runtime"
THRUST = "cupy.cuda.thrust"


def install() -> None:
    """Change CuPy's modules when they are imported; the driver must be loaded by then.

    Raises
    ------
    ImportError
        If CuPy has been imported already: its modules have bound the C functions.
    """
    changes = {RUNTIME: replace_runtime, THRUST: replace_thrust, **REFUSALS}
    ModuleChanges(changes).install()
