"""Limits that must be set before the backend starts."""

from __future__ import annotations

from helpers.processes import output_of

LIMITED = """
    import gc
    import numpy as np
    import nbrt
    from nbrt import config
    from nbrt.errors import OutOfMemoryError

    MIB = 1 << 20
"""


def test_the_limit_is_kept_and_the_cache_is_dropped_before_it_is_hit() -> None:
    code = (
        LIMITED
        + """
    with config.override(cpu_memory_limit=32 * MIB, cpu_devices=2):
        x = nbrt.full(8 * MIB, 1, "uint8", device="cpu:0")
        y = nbrt.empty(16 * MIB, "uint8", device="cpu:0")
        del y
        figures = nbrt.memory_allocated("cpu:0"), nbrt.max_memory_allocated("cpu:0")
        z = nbrt.empty(20 * MIB, "uint8", device="cpu:0")  # only without the 16 MiB cached
        print(nbrt.memory_reserved("cpu:0") <= 32 * MIB, nbrt.mem_get_info("cpu:0")[1] == 32 * MIB)
        del z
        for _ in range(2):
            try:
                nbrt.empty(30 * MIB, "uint8", device="cpu:0")
            except OutOfMemoryError as error:
                print(str(error).count("NBRT_CPU_MEMORY_LIMIT"))
            print(nbrt.memory_allocated("cpu:0") == figures[0])
        print(bool((x == 1).all()), nbrt.empty(30 * MIB, "uint8", device="cpu:1").size // MIB)
    """
    )
    assert output_of(code) == "True True\n1\nTrue\n1\nTrue\nTrue 30\n"


def test_out_of_memory_in_the_middle_of_a_draw_consumes_nothing() -> None:
    code = (
        LIMITED
        + """
    with config.override(cpu_memory_limit=8 * MIB):
        generator = nbrt.Generator(3, "cpu")
        before = generator.state
        try:
            generator.random(2 * MIB)
        except OutOfMemoryError:
            print(generator.state == before, nbrt.memory_allocated("cpu"))
    """
    )
    assert output_of(code) == "True 0\n"


def test_overrides_are_checked_and_undone() -> None:
    code = (
        LIMITED
        + """
    from nbrt.errors import ArgumentError

    for wrong in ({"cpu_devices": 0}, {"cpu_devices": True}, {"no_such": 1}):
        try:
            with config.override(**wrong):
                print("entered")
        except ArgumentError as error:
            print(str(error)[:8], config.settings().cpu_devices)
    with config.override(cpu_devices=3, device="cpu:2"):
        print(nbrt.device_count("cpu"), nbrt.current_device())
    print(nbrt.device_count("cpu"), config.settings().device)
    """
    )
    assert output_of(code) == "expected 1\n" * 3 + "3 cpu:2\n1 None\n"
