"""Name the public programs that ``numba_cuda_programs.py`` runs, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True)
class Program:
    """One public program at one commit, and the tests that run its kernels."""

    name: str
    """``OWNER/NAME`` on GitHub."""

    commit: str
    runs: str
    """What runs, for the page of results."""

    tests: tuple[str, ...] = ()
    """Test files of the program, relative to `directory`."""

    drivers: tuple[str, ...] = ()
    """Test files in ``numba_cuda_program_drivers`` that run kernels of the program."""

    paths: tuple[str, ...] = ("*.py",)
    """Git path specifications of the files to fetch."""

    directory: str = "."
    """The folder to run in, relative to the sources."""

    roots: tuple[str, ...] = (".",)
    """Folders for ``PYTHONPATH``, relative to `directory`."""

    stand_ins: tuple[str, ...] = ()
    """Folders of ``stand_ins`` with modules that take the place of GPU libraries."""

    separately: bool = False
    """Whether each entry of `tests`, files with spaces between them, runs in another process."""

    options: tuple[str, ...] = ()
    """Further options of pytest."""

    environment: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    """Packages that the program imports, beside NumPy, Numba and numba-cuda."""

    test_limit: int = 40
    """Seconds for one test under the simulator, which fails then."""

    limit: int = 120
    """Seconds for the tests of one process under the simulator. Later tests do not run."""

    @property
    def folder(self) -> str:
        """The name of the program as a file name."""
        return self.name.replace("/", "+")

    def sources(self, work: Path) -> Path:
        """Return the folder of the fetched files."""
        return work / "sources" / self.folder


# The first file writes a module that the others import.
_WARP_DRIVE = " ".join(
    f"tests/warp_drive/numba_tests/test_{name}.py"
    for name in (
        "function_manager",
        "action_sampler",
        "data_manager",
        "env_reset",
        "ou_sampler",
        "pool_reset",
        "ring_buffer",
    )
)

PROGRAMS = (
    Program(
        "numba/numba-examples",
        "c423f5419a459f5ab8874fda6d39bb5ea05d04b2",
        "its CUDA scripts with smaller sizes, and the notebooks of releases 0.51 to 0.54 cell by "
        "cell",
        drivers=("test_numba_examples.py",),
        paths=("examples", "legacy", "notebooks/*CUDA_Release_Demo.ipynb"),
        requires=("nvidia-cuda-nvrtc",),
    ),
    Program(
        "kerkelae/disimpy",
        "f1d97421ee56fa0624e37e3aa4bb0ff3437e456b",
        "its tests of simulations (diffusion MRI by random walks)",
        tests=("disimpy/tests/test_simulations.py",),
        paths=("disimpy", ":!disimpy/tests/camino.scheme"),
        options=("-k", "cuda or diffusion"),
        requires=("scipy", "matplotlib", "meshio"),
    ),
    Program(
        "TDAmeritrade/stumpy",
        "423c679fdfcdd547744d2b9a2aed7565124fd6e1",
        "its GPU tests (matrix profiles of time series)",
        tests=(
            "tests/test_gpu_stump.py",
            "tests/test_gpu_aamp.py",
            "tests/test_gpu_mpdist.py",
            "tests/test_gpu_ostinato.py",
        ),
        paths=("stumpy", "tests"),
        requires=("scipy", "pandas<3"),
    ),
    Program(
        "minitorch/minitorch-module-3-larryzhang23",
        "799bb346f72366c2fbbed3b0663e1524c7222873",
        "the tests of tasks 3.3 and 3.4 of the course, on a solution in its organization",
        tests=("tests/test_tensor_general.py",),
        paths=("minitorch", "tests"),
        options=("-m", "task3_3 or task3_4 or not (task3_1 or task3_2)", "--hypothesis-seed=0"),
        requires=("hypothesis",),
    ),
    Program(
        "scikit-hep/awkward",
        "6062e76d21b50e2ae83456bb793e00815e76af1e",
        "its tests of awkward arrays as kernel arguments",
        tests=(
            "tests-cuda/test_1300_same_for_numba_cuda.py",
            "tests-cuda/test_1809_array_cuda_jit.py",
            "tests-cuda/test_3115_array_typed_cuda_jit.py",
        ),
        paths=("tests-cuda",),
        roots=(),
        stand_ins=("cupy",),
        requires=("awkward==2.14.0",),
    ),
    Program(
        "PyLops/pylops",
        "cca7184e80da3af1ec27173df7905b676799ec23",
        "its tests of the operators with the engine cuda (seismic processing), cupyx being SciPy",
        tests=(
            "pytests/test_fourierradon.py",
            "pytests/test_nonstatconvolve.py",
            "pytests/test_kirchhoff.py",
        ),
        paths=("pylops", "pytests"),
        stand_ins=("cupy",),
        environment={"TEST_CUPY_PYLOPS": "1"},
        requires=("scipy",),
    ),
    Program(
        "DUNE/larnd-sim",
        "aab11b95092f736bc83009485a063bae767b895c",
        "its tests of quenching and drifting, and kernels of pixels, currents and the hash table "
        "(detector simulation)",
        tests=("tests/testQuenching.py", "tests/testDrifting.py"),
        drivers=("test_larnd_sim.py",),
        paths=("larndsim/*.py", "larndsim/*.yaml", "larndsim/bin/sipm_impulse.npy", "tests"),
        stand_ins=("cupy",),
        requires=("pyyaml", "scipy", "h5py"),
    ),
    Program(
        "ccam80/cubie",
        "0dfe92b4e59e834f54e261cfb77d7738abc62bbe",
        "its tests of solvers, norms, interpolation and step control (ordinary differential "
        "equations)",
        tests=(
            "tests/integrators/test_norms.py",
            "tests/test_array_interpolator.py",
            "tests/integrators/matrix_free_solvers",
            "tests/integrators/step_control",
            "tests/integrators/test_SingleIntegratorRun.py",
        ),
        paths=("src", "tests", "pyproject.toml", ":!tests/integrated_numerical_tests"),
        roots=("src", "."),
        stand_ins=("cupy",),
        environment={"CUBIE_CUDA_BACKEND": "numba-cuda"},
        options=(
            "--import-mode=importlib",
            "-m",
            "not nocudasim and not cupy and not specific_algos",
        ),
        requires=("attrs", "sympy", "pandas", "scipy", "lxml", "Pint", "rdflib", "networkx"),
    ),
    Program(
        "salesforce/warp-drive",
        "bac017ebb481714bee8f6b0ec75a67d3a2e034d3",
        "its tests of the numba backend and environments (reinforcement learning), with torch's "
        "tensors in host memory",
        tests=(
            _WARP_DRIVE,
            "tests/example_envs/numba_tests/test_tag_gridworld.py",
            "tests/example_envs/numba_tests/single_agent/classic_control/test_cartpole.py",
            "tests/example_envs/numba_tests/single_agent/classic_control/test_pendulum.py",
        ),
        separately=True,
        paths=("warp_drive", "example_envs", "tests"),
        stand_ins=("torch",),
        options=("-p", "torch_on_host"),
        requires=("torch", "gymnasium"),
    ),
    Program(
        "holoviz/datashader",
        "b7ac59c5ad20412edbf9b12ee9dc6ff62d563f01",
        "its pipeline for cuDF (pixels of points, lines and areas) against that for pandas, cuDF "
        "being pandas",
        drivers=("test_datashader.py",),
        paths=("datashader",),
        stand_ins=("cupy", "cudf"),
        requires=("colorcet", "multipledispatch", "param", "pyct", "toolz", "xarray", "pandas<3"),
    ),
    Program(
        "rapidsai/cuxfilter",
        "fc8aab2033fabcc4117272a0a4ca84029fe365eb",
        "its kernels (points in polygons, edges of graphs) against NumPy",
        drivers=("test_cuxfilter.py",),
        paths=("python/cuxfilter/charts",),
        stand_ins=("cupy",),
    ),
    Program(
        "makepath/xarray-spatial",
        "5f6238f80fceb39740f975bc35cb6d93f6255c83",
        "its functions for CuPy's arrays (raster analysis) against those for NumPy's",
        drivers=("test_xarray_spatial.py",),
        paths=("xrspatial",),
        stand_ins=("cupy",),
        requires=("xarray", "datashader", "dask", "pandas<3"),
    ),
)
