"""The ways to run programs for numba.cuda on nbrt, each in a new process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import environment_of_users, output_of, run_python

if TYPE_CHECKING:
    from pathlib import Path

SWITCHED_ON = {"NBRT_NUMBA_CUDA": "1", "NBRT_DEVICE": "cpu"}

# A program written for a GPU: it does not import nbrt.
PROGRAM = """
import multiprocessing
import sys

import numpy as np
from numba import cuda, njit


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@njit
def plus_one(x):
    return x + 1


def send(queue):
    queue.put(cuda.is_available() and cuda.to_device(np.arange(3.0)).copy_to_host().sum())


if __name__ == "__main__":
    for method in ("fork", "spawn"):  # before the parent uses a device, as CUDA demands
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=send, args=(queue,))
        child.start()
        child.join()
        print(child.exitcode or queue.get())
    print(__file__ == sys.argv[0], "nbrt" in globals(), sys.path[0] in __file__, sys.argv[1:])
    if "launch" in sys.argv:
        x = cuda.to_device(np.arange(4.0))
        double[1, 64](x)
        print(x.copy_to_host(), plus_one(1))
    if "fail" in sys.argv:
        undefined
    sys.exit(7)
"""
OUTPUT = "3.0\n3.0\nTrue False True {arguments}\n"


def _run(
    arguments: list[str], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment_of_users() | {"NBRT_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_variable_switches_a_program_and_its_children_on(program: str, tmp_path: Path) -> None:
    switched_on = {"NBRT_NUMBA_CUDA": "1", "NUMBA_ENABLE_CUDASIM": "1"}
    done = _run([program, "launch"], tmp_path, **switched_on)
    assert done.stdout == OUTPUT.format(arguments=["launch"]) + "[0. 2. 4. 6.] 2\n", done.stderr
    assert done.returncode == 7


@pytest.mark.parametrize("target", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_the_command_runs_a_program_as_python_does(
    program: str, tmp_path: Path, target: list[str]
) -> None:
    run = ["-m", "nbrt", "run", *target]
    if target == ["program.py"]:
        run[-1] = program
    done = _run([*run, "-x", "--y", "fail"], tmp_path)
    assert done.stdout == OUTPUT.format(arguments=["-x", "--y", "fail"])
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{program}", line ' in lines[1], "the first frame is the program's"
    assert lines[-1] == "NameError: name 'undefined' is not defined"
    assert done.returncode == 1


def test_the_command_gives_scripts_what_python_gives_them(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "__main__.py").write_text("import sys; print('folder', sys.argv, sys.path[0])")
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, pickle, sys, threading\n"
        "class Value: pass\n"
        "def late(): print(type(pickle.loads(pickle.dumps(Value()))).__name__, __name__)\n"
        "atexit.register(late)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('numba', 'numpy')])\n"
        "print(__spec__, __package__, type(__loader__).__name__, sys.path[0])\n"
        "sys.exit('the reason')\n"
    )
    mine = _run(["-m", "nbrt", "run", "folder", "a"], tmp_path)
    assert (mine.stdout, mine.stderr) == ("folder ['folder', 'a'] folder\n", "")
    mine = _run(["-m", "nbrt", "run", str(script)], tmp_path)
    python = _run([str(script)], tmp_path)
    assert (mine.stdout, mine.stderr, mine.returncode) == (
        python.stdout,
        python.stderr,
        python.returncode,
    )
    for wrong in ([], ["missing.py"], ["-m"]):
        done = _run(["-m", "nbrt", "run", *wrong], tmp_path)
        assert done.stderr.startswith("nbrt: expected a ")
        assert done.returncode == 1


def test_the_pytest_option_acts_before_conftest_and_in_workers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from numba import cuda\nassert cuda.is_available()\n")
    (tmp_path / "test_it.py").write_text(
        "import subprocess, sys\n"
        "from numba import cuda\n"
        "def test_array(): assert list(cuda.to_device([1, 2]).copy_to_host()) == [1, 2]\n"
        "def test_child():\n"
        "    code = 'from numba import cuda; print(cuda.is_available())'\n"
        "    assert subprocess.check_output([sys.executable, '-c', code]) == b'True\\n'\n"
    )
    # pytest imports conftest.py in this process and in the worker.
    run = ["-m", "pytest", "-p", "no:cacheprovider", "--nbrt-numba-cuda", "-n", "1"]
    done = _run(run, tmp_path)
    assert "numba.cuda: nbrt on cpu:0" in done.stdout
    assert "2 passed" in done.stdout


def test_the_magic_switches_on_and_off(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    code = """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        cells = [
            "%load_ext nbrt",
            "%nbrt_numba_cuda",
            "from numba import cuda; print(cuda.is_available())",
            "%nbrt_numba_cuda off",
            "from nbrt.compat import numba_cuda; print(numba_cuda.is_installed())",
        ]
        for cell in cells:
            shell.run_cell(cell, store_history=True).raise_error()
        print(type(shell.run_cell("%nbrt_numba_cuda maybe").error_in_exec).__name__)
    """
    environment = {"NBRT_DEVICE": "cpu", "IPYTHONDIR": str(tmp_path)}
    lines = run_python(code, environment=environment).stdout.splitlines()
    assert lines[:3] == ["numba.cuda: nbrt on cpu:0", "True", "False"]
    assert lines[-1] == "ArgumentError"


def test_uninstall_restores_all_that_was_there() -> None:
    code = """
        import os, sys
        from types import ModuleType

        import numba
        from numba import cuda
        from numba.core.target_extension import dispatcher_registry, target_registry
        import numba.cuda.random, numba.cuda.extending, numba.cuda.vectorizers
        from nbrt.compat import numba_cuda
        import nbrt.compat.numba_cuda.installation

        def names():
            found = {}
            for name, module in list(sys.modules.items()):
                if name.startswith("numba.cuda") and isinstance(module, ModuleType):
                    for key, value in list(vars(module).items()):
                        found[name, key] = value
                        if isinstance(value, type) and value.__module__ == name:
                            found |= {(name, key, *item[:1]): item[1] for item in
                                      vars(value).items()}
            return found

        def state():
            return (list(sys.meta_path), dict(os.environ),
                    dispatcher_registry[target_registry["cuda"]],
                    {name for name in sys.modules if "mlir" in name})

        names_before, state_before = names(), state()
        for _ in range(2):
            numba_cuda.install()
            numba_cuda.install()
            from numba_cuda_mlir import cuda as successor
            assert successor is cuda and numba_cuda.is_installed()
            x = cuda.to_device([1.0, 2.0])
            cuda.jit(lambda y: None)[1, 1](x)
            assert state() != state_before
            del x
            numba_cuda.uninstall()
            numba_cuda.uninstall()
        names_after = names()
        changed = {key for key in names_before
                   if names_after.get(key, None) is not names_before[key]}
        print(sorted(changed), state() == state_before, numba_cuda.is_installed())
        added = {key for key in set(names_after) - set(names_before)
                 if not isinstance(names_after[key], ModuleType)}
        added -= {("numba.cuda.cudadrv.driver", "_logger")}  # numba-cuda's, when it first logs
        added = {key for key in added if key[1] != "__warningregistry__"}
        print({key[0] for key in added} & {key[0] for key in names_before})
    """
    assert output_of(code, "-W", "ignore", environment={"NBRT_DEVICE": "cpu"}) == (
        "[] True False\nset()\n"
    )


def test_modules_of_the_successor_are_those_of_numba_cuda() -> None:
    code = """
        import sys
        assert not [name for name in sys.modules if name.split(".")[0] in ("numba", "numpy")]
        import numba_cuda_mlir
        from numba_cuda_mlir import cuda, types
        import numba_cuda_mlir.cuda.cudadrv.devicearray as devicearray
        import numba_cuda_mlir.numba_cuda.random
        from numba_cuda_mlir.cuda.shared import array
        import numba, numba.cuda, numba.cuda.cudadrv.devicearray

        assert cuda is numba.cuda is numba_cuda_mlir.cuda and types is numba.cuda.types
        assert devicearray is numba.cuda.cudadrv.devicearray
        assert numba_cuda_mlir.numba_cuda.random is numba.cuda.random
        assert array is numba.cuda.shared.array
        assert numba.cuda.__spec__.name == numba.cuda.__name__ == "numba.cuda"
        assert numba.cuda.__spec__.loader.get_source("numba.cuda")
        assert cuda.DeviceNDArray is devicearray.DeviceNDArray
        assert cuda.random.create_xoroshiro128p_states
        assert not hasattr(cuda, "inline_ptx") and not hasattr(cuda, "nonsense")
        for line in (
            "import numba_cuda_mlir.extending",
            "import numba_cuda_mlir.cuda.experimental",
            "from numba_cuda_mlir.cuda import inline_ptx",
            "cuda.half2",
            "from numba_cuda_mlir.cuda import nonsense",
        ):
            try:
                exec(line)
            except (AttributeError, ImportError) as error:
                print(type(error).__name__, error)
    """
    lines = output_of(code, environment=SWITCHED_ON).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "ModuleNotFoundError numba.cuda on nbrt has no equivalent of numba_cuda_mlir.extending",
        "ModuleNotFoundError numba.cuda on a CPU device of nbrt has no experimental",
        "ImportError numba.cuda on a CPU device of nbrt has no inline_ptx",
        "AttributeError numba.cuda on a CPU device of nbrt has no half2",
        lines[-1],
    ]
    assert "cannot import name 'nonsense' from 'numba.cuda'" in lines[-1]


@pytest.mark.parametrize(
    ("environment", "before", "message"),
    [
        ({"NBRT_NUMBA_CUDA": "yes"}, "", "expected NBRT_NUMBA_CUDA to be 0 or 1, got 'yes'"),
        (SWITCHED_ON, "sys.modules['numba_cuda'] = None", "expected the package numba-cuda"),
        (
            {"NUMBA_ENABLE_CUDASIM": "1", "NBRT_DEVICE": "cpu"},
            "import numba.cuda; from nbrt.compat import numba_cuda; numba_cuda.install()",
            "expected numba.cuda without its simulator",
        ),
    ],
    ids=["value", "missing", "simulator"],
)
def test_what_cannot_work_says_so(environment: dict[str, str], before: str, message: str) -> None:
    code = f"import sys\n{before}\nfrom numba import cuda"
    done = run_python(code, environment=environment)
    assert message in done.stderr.splitlines()[-1]
    assert done.returncode == 1


def test_a_simulator_set_by_the_program_is_not_used() -> None:
    code = """
        import os, sys
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        import numba
        from numba import cuda
        print(numba.config.ENABLE_CUDASIM, cuda.jit(lambda x: None).__class__.__module__)
        print("numba.cuda.simulator_init" in sys.modules, "NUMBA_ENABLE_CUDASIM" in os.environ)
    """
    assert output_of(code, environment=SWITCHED_ON) == (
        "0 nbrt.compat.numba_cuda.dispatcher\nFalse False\n"
    )


def test_zero_and_empty_switch_nothing_on() -> None:
    code = """
        import sys
        print([name for name in sys.modules if name.startswith("nbrt.compat")], sys.meta_path[0])
        from nbrt.compat import numba_cuda
        print(numba_cuda.is_installed())
    """
    for value in ("0", "", " "):
        lines = output_of(code, environment={"NBRT_NUMBA_CUDA": value}).splitlines()
        assert "ImportHook" not in lines[0]
        assert lines[1] == "False"
    assert "compat" not in output_of(code).splitlines()[0]


def test_a_gpu_runs_programs_unless_the_default_device_is_a_cpu(cuda_interface: object) -> None:
    code = """
        import numpy as np
        from numba import cuda
        import nbrt
        from nbrt.compat import numba_cuda
        x = cuda.to_device(np.arange(1000))
        print(numba_cuda.is_installed(), type(cuda.jit(lambda x: None)).__module__,
              nbrt.memory_allocated() >= x.nbytes, x.copy_to_host().sum())
    """
    numba_cuda, drop_in = "numba.cuda.dispatcher", "nbrt.compat.numba_cuda.dispatcher"
    for device, module in (("", numba_cuda), ("cpu", drop_in)):
        environment = {"NBRT_NUMBA_CUDA": "1", "NBRT_DEVICE": device}
        printed = output_of(code, environment=environment, simulated_cuda=True)
        assert printed == f"True {module} True 499500\n"


def test_a_kernel_is_unpickled_where_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "kernels_of_user.py").write_text(
        "from numba import cuda\n@cuda.jit\ndef double(x):\n    x[cuda.grid(1)] *= 2\n"
    )
    code = """
        import pickle, sys
        from kernels_of_user import double
        sys.stdout.write(pickle.dumps(double).hex())
    """
    data = output_of(code, environment=SWITCHED_ON, path=(tmp_path,))
    code = f"""
        import pickle, sys
        import nbrt.compat.numba_cuda.dispatcher as dispatcher
        assert dispatcher is sys.modules["nbrt.compat.numba_cuda.dispatcher"]
        double = pickle.loads(bytes.fromhex({data!r}))
        import numpy as np
        x = np.ones(3)
        double[1, 3](x)
        print(x, type(double) is dispatcher.Dispatcher)
    """
    for environment in (SWITCHED_ON, {"NBRT_DEVICE": "cpu"}):
        printed = output_of(code, "-W", "ignore", environment=environment, path=(tmp_path,))
        assert printed == "[2. 2. 2.] True\n"


def test_settings_of_nbrt_apply_to_programs() -> None:
    code = """
        import numpy as np
        from numba import cuda
        from nbrt.errors import KernelCheckError

        @cuda.jit
        def ones(x):
            x[cuda.grid(1)] = 1

        larger = np.zeros(8)
        try:
            ones[1, 8](larger[:4])
        except KernelCheckError as error:
            print("out of bounds" in str(error), larger[4:].any())
        with cuda.gpus[1]:
            print(cuda.get_current_device().id, len(cuda.gpus))
    """
    environment = SWITCHED_ON | {"NBRT_CHECK": "1", "NBRT_CPU_DEVICES": "2"}
    assert output_of(code, "-W", "ignore", environment=environment) == "True False\n1 2\n"


def test_kernels_on_disk_are_launched_without_the_compiler(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.replace("sys.exit(7)", "print('nbrt.backends.cpu.simt.builtins' in sys.modules)")
    )
    cache = str(tmp_path / "cache")
    for is_compiled in (True, False):
        done = _run([str(program), "launch"], tmp_path, NBRT_NUMBA_CUDA="1", NBRT_CACHE_DIR=cache)
        assert done.stdout.splitlines()[-2:] == ["[0. 2. 4. 6.] 2", str(is_compiled)], done.stderr
