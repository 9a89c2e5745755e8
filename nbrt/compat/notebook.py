"""``%nbrt_numba_cuda``: programs for ``numba.cuda`` on nbrt, in a notebook."""

from __future__ import annotations

from typing import Any

from nbrt.errors import ArgumentError

__all__ = ["load_extension"]


def load_extension(shell: Any) -> None:
    """Add the magic to a shell of IPython."""
    from IPython.core.magic import Magics, line_magic, magics_class

    @magics_class
    class NumbaCudaMagics(Magics):
        """The magic for ``numba.cuda``."""

        @line_magic
        def nbrt_numba_cuda(self, line: str) -> None:
            """Run programs for ``numba.cuda`` on nbrt: on CPU devices, unless a GPU is there.

            %nbrt_numba_cuda [on | off]

            Kernels that were defined before keep what they have compiled; define them again.
            """
            _switch(line.strip() or "on")

    shell.register_magics(NumbaCudaMagics)


def _switch(state: str) -> None:
    from nbrt.compat import numba_cuda
    from nbrt.runtime.device import default_device

    if state == "on":
        numba_cuda.install()
        print(f"numba.cuda: nbrt on {default_device()}")  # noqa: T201  # the magic's output
    elif state == "off":
        numba_cuda.uninstall()
    else:
        raise ArgumentError(f"expected %nbrt_numba_cuda, or with on or off, got {state!r}")
