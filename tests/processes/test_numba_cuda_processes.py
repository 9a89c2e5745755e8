"""Programs for ``numba.cuda`` on CPU devices with several processes, and their end."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = {"NBRT_NUMBA_CUDA": "1"}

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")


def run_program(folder: Path, code: str, **environment: str) -> str:
    """Run a program that is a file, as ``spawn`` needs one; return what it prints."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(code))
    start = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    return output_of(start, environment={**INSTALLED, **environment}, path=(folder,))


@linux_only
def test_processes_share_memory_by_handles(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text(
        textwrap.dedent("""
        from numba import cuda

        @cuda.jit
        def double(x):
            i = cuda.grid(1)
            if i < x.size:
                x[i] *= 2

        def work(handles):
            with handles[0] as whole, handles[1] as part:
                double[4, 32](whole)
                double[4, 32](part)
                cuda.synchronize()
                return part.copy_to_host().tolist()
        """)
    )
    out = run_program(
        tmp_path,
        """
        import multiprocessing, os
        import numpy as np
        from numba import cuda
        import shared

        if __name__ == "__main__":
            neighbour = cuda.to_device(np.arange(8))
            stream = cuda.stream()
            array = cuda.to_device(np.arange(100.0), stream=stream)
            shared.double[4, 32, stream](array)
            handles = array.get_ipc_handle(), array[90:].get_ipc_handle()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(shared.work, (handles,))[-3:])
            expected = np.arange(100.0) * 4
            expected[90:] *= 2
            assert (array.copy_to_host() == expected).all()
            shared.double[4, 32](array)
            assert (array.copy_to_host() == expected * 2).all()
            assert neighbour.copy_to_host().tolist() == list(range(8))
            address = array.device_ctypes_pointer.value
            del array, handles
            cuda.current_context().memory_manager.deallocations.clear()
            files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
            print(sum("memfd:nbrt" in name for name in files))
            with open("/proc/self/maps") as maps:
                print(sum("memfd:nbrt" in line for line in maps))
        """,
    )
    assert out.splitlines() == ["[776.0, 784.0, 792.0]", "0", "0"]


@linux_only
def test_handles_of_memory_that_is_gone_are_refused() -> None:
    out = output_of(
        """
        import pickle, subprocess, sys
        import numpy as np
        from numba import cuda
        from numba.cuda.cudadrv.driver import CudaAPIError

        code = '''
        import pickle, sys
        import numpy as np
        from numba import cuda
        handle = cuda.to_device(np.arange(10)).get_ipc_handle()
        sys.stdout.buffer.write(pickle.dumps(handle))
        '''
        import textwrap
        text = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)])
        try:
            pickle.loads(text).open()
        except CudaAPIError as error:
            print(error)
        try:
            with cuda.open_ipc_array(b"x" * 64, 10, np.float64):
                pass
        except CudaAPIError as error:
            print(error)
        """,
        environment=INSTALLED,
    )
    ended, invalid = out.splitlines()
    assert "CUDA_ERROR_INVALID_HANDLE" in ended
    assert "CUDA_ERROR_INVALID_VALUE" in invalid


@pytest.mark.parametrize("is_used", [False, True])
def test_a_forked_child_uses_devices_that_its_parent_has_not_used(*, is_used: bool) -> None:
    out = output_of(
        f"""
        import os
        import numpy as np
        from numba import cuda
        from numba.cuda.cudadrv.error import CudaDriverError

        if {is_used}:
            cuda.to_device(np.zeros(1))
        child = os.fork()
        if not child:
            try:
                print(cuda.to_device(np.arange(3)).copy_to_host(), flush=True)
            except CudaDriverError as error:
                print(error, "|", type(error.__cause__).__name__, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """,
        environment=INSTALLED,
    )
    expected = "CUDA initialized before forking | ForkedProcessError" if is_used else "[0 1 2]"
    assert out.strip() == expected


def test_a_program_ends_with_arrays_streams_and_work(tmp_path: Path) -> None:
    out = run_program(
        tmp_path,
        """
        import numpy as np
        from numba import cuda

        @cuda.jit
        def count(x):
            for _ in range(100_000):
                x[0] += 1

        streams = [cuda.stream() for _ in range(4)]
        arrays = [cuda.to_device(np.zeros(1), stream=stream) for stream in streams]
        held = [cuda.event(), cuda.mapped_array(4), cuda.pinned_array(4), cuda.managed_array(4)]
        for stream, array in zip(streams, arrays):
            count[1, 1, stream](array)
        print("end")
        """,
        NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0",
    )
    assert out == "end\n"


def test_programs_run_without_the_packages_of_cuda() -> None:
    out = output_of(
        """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name == "cuda" or name.startswith("cuda."):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Absent())
        import numpy as np
        from nbrt.compat import numba_cuda
        from numba import cuda

        @cuda.jit
        def add_one(x):
            x[cuda.grid(1)] += 1

        stream = cuda.stream()
        array = cuda.to_device(np.arange(4), stream=stream)
        add_one[1, 4, stream](array)
        array[0] = 9
        print(array.copy_to_host(stream=stream), cuda.get_current_device().WARP_SIZE)
        host = np.zeros(2)
        add_one[1, 2](host)
        print(host)
        try:
            cuda.external_stream(77).synchronize()
        except cuda.cudadrv.driver.CudaAPIError as error:
            print(int(error.code))
        numba_cuda.uninstall()
        print([name for name in sys.modules if name.partition(".")[0] == "cuda"])
        """,
        environment=INSTALLED,
    )
    assert out.splitlines() == ["[9 2 3 4] 32", "[1. 1.]", "400", "[]"]
