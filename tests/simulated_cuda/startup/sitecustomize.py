"""Prepare a child process for the simulated CUDA driver, then run the next ``sitecustomize``.

`simulated_cuda.loader.load` puts this folder first into ``PYTHONPATH``.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # starts every process
_PACKAGE = os.path.dirname(_HERE)


def _prepare() -> None:
    # The package is found by its place: its parent folder stays off sys.path, where the tests'
    # other modules would come with it.
    spec = importlib.util.spec_from_file_location(
        "simulated_cuda",
        os.path.join(_PACKAGE, "__init__.py"),
        submodule_search_locations=[_PACKAGE],
    )
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules["simulated_cuda"] = package
    spec.loader.exec_module(package)
    from simulated_cuda import loader

    loader.prepare()


def _run_next() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    elsewhere = [path for path in sys.path if os.path.abspath(path) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("NBRT_SIMULATED_CUDA") != "0" and "NBRT_SIM_LIBRARY" in os.environ:
    _prepare()
_run_next()
