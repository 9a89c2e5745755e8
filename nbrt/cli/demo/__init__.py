"""The demo: denoise a photograph on two streams and compare every step with NumPy.

`run_demo` is the Python interface; ``nbrt demo`` prints and plots its result. The package uses only
public names of nbrt, and kernels of `nbrt_kernels`.
"""

from __future__ import annotations

from nbrt.cli.demo.pipeline import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
