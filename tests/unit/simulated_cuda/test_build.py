"""The library is built once, by one process, and errors of the compiler are shown."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from simulated_cuda import build

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def test_the_sources_compile_without_warnings(simulation: ModuleType) -> None:
    folder = build.build().parent
    assert (folder / "compiler.log").read_text() == ""


def test_a_built_library_is_not_built_again(
    simulation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build.build()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiles again"))
    assert build.build() == library


def test_one_of_several_builders_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    started = threading.Barrier(4)

    def compile_once(command: list[str], folder: Path) -> None:
        runs.append(folder)
        (folder / build.LIBRARY).touch()

    def build_it() -> None:
        started.wait(60)
        build.build()

    monkeypatch.setenv("NBRT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "_compile", compile_once)
    threads = [threading.Thread(target=build_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1


def test_a_failed_build_shows_the_messages_and_leaves_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "driver"
    sources.mkdir()
    (sources / "broken.c").write_text("int broken(void) { return nothing; }\n")
    monkeypatch.setenv("NBRT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_DRIVER", sources)
    with pytest.raises(build.BuildError, match=r"broken\.c[^$]*nothing"):
        build.build()
    assert not list(tmp_path.rglob(build.LIBRARY))


def test_another_compiler_makes_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    command = build.compiler()
    assert build._key(command) != build._key([*command, "-O2"])


def test_the_compiler_is_chosen_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "ccache gcc -m64")
    assert build.compiler() == ["ccache", "gcc", "-m64"]


def test_without_a_compiler_that_of_ziglang_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert build.compiler()[1:4] == ["-m", "ziglang", "cc"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="pip install ziglang"):
        build.compiler()


def test_a_compiler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(build.BuildError, match="cannot run /no/such/compiler"):
        build.build()


def test_a_cache_that_cannot_be_written_to_is_an_error_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NBRT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match=r"cannot be built in .*NBRT_CACHE_DIR"):
        build.build()
