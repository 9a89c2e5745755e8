"""``import nbrt`` has no side effects."""

from __future__ import annotations

import pytest

from helpers.processes import output_of

BANNED = [
    "numpy",
    "numba",
    "llvmlite",
    "cupy",
    "cupyx",
    "cuda",
    "numba_cuda",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "ctypes",
    "importlib.metadata",
    "unittest",
    "matplotlib",
    "torch",
    "mpi4py",
    "subprocess",
    "socket",
    "nbrt_kernels",
]


def test_import_loads_little_and_prints_nothing() -> None:
    code = """
        import sys, threading
        before = set(sys.modules)
        import nbrt
        loaded = set(sys.modules) - before
        assert threading.active_count() == 1
        sys.stdout.write("\\n".join(sorted(loaded)))
    """
    loaded = output_of(code).splitlines()
    assert "nbrt" in loaded
    wrong = [
        name for name in loaded if any(name == ban or name.startswith(ban + ".") for ban in BANNED)
    ]
    assert wrong == []
    assert not [name for name in loaded if name.startswith("nbrt.backends.")]


def test_presence_is_asked_without_initialising() -> None:
    code = """
        import sys, threading
        import nbrt

        nbrt.Device("cpu:1")
        for kind in nbrt.known_backends():
            nbrt.is_available(kind)
            nbrt.device_count(kind)
        nbrt.get_device_properties("cpu:0")
        nbrt.current_device()
        with nbrt.device("cpu:0"):
            nbrt.set_device("cpu:0")
        nbrt.can_access_peer("cpu:0", "cpu:0")
        from nbrt.backends import registry
        print(registry.ready_interfaces(), threading.active_count())
        print([name for name in ("numba", "cupy", "asyncio") if name in sys.modules])
    """
    assert output_of(code) == "() 1\n[]\n"


def test_streams_and_arrays_do_without_numba() -> None:
    code = """
        import sys
        import nbrt

        with nbrt.device("cpu:0"), nbrt.stream(nbrt.Stream("cpu:0")) as guard:
            nbrt.to_host(nbrt.zeros(3))
            guard.stream.record_event().synchronize()
        heavy = ("numba", "cupy", "asyncio", "nbrt_kernels")
        print([name for name in heavy if name in sys.modules])
    """
    assert output_of(code) == "[]\n"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"NBRT_CPU_DEVICES": "many"},
            "expected NBRT_CPU_DEVICES to be an integer in [1, 64], got 'many'",
        ),
        ({"NBRT_CPU_DEVICES": "0"}, "expected NBRT_CPU_DEVICES to be an integer in [1, 64], got 0"),
        ({"NBRT_CPU_THREADS": "-1"}, "expected NBRT_CPU_THREADS to be an integer in [0, 1024]"),
        ({"NBRT_CPU_MEMORY_LIMIT": "1e9"}, "expected NBRT_CPU_MEMORY_LIMIT to be an integer"),
        ({"NBRT_CACHE_LIMIT": "-1"}, "expected NBRT_CACHE_LIMIT to be an integer in [0, "),
        ({"NBRT_DEVICE": "gpu"}, "got 'gpu'"),
        ({"NBRT_DEVICE": "cpu:9"}, "got cpu:9; set NBRT_CPU_DEVICES"),
        ({"NBRT_DEVICE": "cpu 0"}, "expected a device name 'kind' or 'kind:index'"),
    ],
)
def test_wrong_settings_are_named_at_first_use(environment: dict[str, str], message: str) -> None:
    code = """
        import nbrt

        for _ in range(2):
            try:
                nbrt.zeros(3)
            except nbrt.errors.NbrtError as error:
                print(error)
            else:
                print("no error")
    """
    text = output_of(code, environment=environment)
    assert text.count(message) == 2


def test_nbrt_device_chooses_the_default() -> None:
    code = """
        import threading
        import nbrt

        print(nbrt.current_device(), nbrt.device_of(nbrt.zeros(3)))
        threading.Thread(target=lambda: print(nbrt.current_device())).start()
    """
    settings = {"NBRT_DEVICE": "cpu:2", "NBRT_CPU_DEVICES": "3"}
    assert output_of(code, environment=settings) == "cpu:2 cpu:2\ncpu:2\n"
