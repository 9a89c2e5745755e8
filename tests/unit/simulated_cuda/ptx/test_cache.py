"""Compiled modules on disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of
from simulated_cuda.ptx import cache, loading
from simulated_cuda.ptx.errors import PtxError
from unit.simulated_cuda.ptx.executor import HEADER

if TYPE_CHECKING:
    from pathlib import Path

TEXT = HEADER + ".visible .global .u32 seven = 7; .visible .entry k() { ret; }"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBRT_CACHE_DIR", str(tmp_path))
    return tmp_path / "simulated_cuda" / "ptx"


@pytest.fixture
def translations(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Texts that were translated, not fetched."""
    found: list[bytes] = []
    translate = loading.translate

    def record(text: bytes) -> object:
        found.append(text)
        return translate(text)

    monkeypatch.setattr(loading, "translate", record)
    return found


def test_a_text_is_translated_once(own_folder: Path, translations: list[bytes]) -> None:
    first = loading.load(TEXT.encode(), {})
    second = loading.load(TEXT.encode(), {})
    assert len(translations) == 1
    assert len(list(own_folder.glob("*/*"))) == 1
    assert first.kernels == second.kernels
    addresses = [module.address("seven") for module in (first, second)]
    assert addresses[0] != addresses[1]
    loading.load((TEXT + " ").encode(), {})
    assert len(translations) == 2


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "other"])
def test_a_damaged_file_is_translated_again(
    own_folder: Path, translations: list[bytes], damage: str
) -> None:
    loading.load(TEXT.encode(), {})
    [file] = own_folder.glob("*/*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = {"empty": b"", "short": data[:60], "flipped": data, "other": b"x" * 500}[damage]
    file.write_bytes(bytes(damaged))
    loading.load(TEXT.encode(), {})
    assert len(translations) == 2
    loading.load(TEXT.encode(), {})
    assert len(translations) == 2


def test_a_folder_that_cannot_be_written_is_no_error(
    own_folder: Path, translations: list[bytes]
) -> None:
    own_folder.parent.mkdir()
    own_folder.write_text("a file where the folder should be")
    loading.load(TEXT.encode(), {})
    loading.load(TEXT.encode(), {})
    assert len(translations) == 2


def test_the_key_depends_on_text_version_and_processor() -> None:
    keys = {
        cache.key_of(text, version, (name, "+sse2"))
        for text in (b"a", b"b")
        for version in ("1", "2")
        for name in ("old", "new")
    }
    assert len(keys) == 8


def test_files_of_old_versions_are_removed(own_folder: Path) -> None:
    for number in range(6):
        cache.store(f"version{number}/key", {}, b"code")
        path = own_folder / f"version{number}"
        os.utime(path, (number, number))
    assert sorted(path.name for path in own_folder.iterdir()) == [
        f"version{number}" for number in range(2, 6)
    ]
    assert cache.fetch("version5/key") == ({}, b"code")


def test_errors_are_not_kept(own_folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(PtxError, match="line 1"):
            loading.load(b"nonsense", {})
    assert not own_folder.exists() or not list(own_folder.iterdir())


def test_a_missing_function_of_the_driver_is_named() -> None:
    text = HEADER + ".visible .entry k() { bar.sync 0; }"
    with pytest.raises(RuntimeError, match="sim_barrier"):
        loading.load(text.encode(), {})


def test_a_cached_module_needs_neither_parser_nor_numba(own_folder: Path) -> None:
    loading.load(TEXT.encode(), {})
    code = f"""
        import sys
        from simulated_cuda.ptx import loading
        loading.load({TEXT.encode()!r}, {{}})
        heavy = ["numba", "numpy", "simulated_cuda.ptx.parser", "simulated_cuda.ptx.module"]
        print([name for name in heavy if name in sys.modules])
        """
    environment = {"NBRT_CACHE_DIR": str(own_folder.parents[1])}
    assert output_of(code, environment=environment).strip() == "[]"
