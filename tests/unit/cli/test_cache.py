"""``nbrt cache`` and ``nbrt.cache``: tables, filters, bundles of real kernels."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.processes import ROOT, environment_of_users
from nbrt.backends.code_store.bundle import write_bundle
from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.frontend.pipeline import ThreadDispatcher
from nbrt.cli.main import main
from nbrt.config import override
from nbrt.errors import ArgumentError, ArgumentTypeError, BundleError, CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An empty folder of compiled code."""
    with override(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def put(number: int, name: str, *, kind: str = "other", target: str = "any", age: int = 0) -> None:
    """Store an entry of a kind without a backend."""
    entry = Entry(kind, name, "int64", target, sections={"object": bytes(2048)}, created=age)
    assert CodeStore(kind).put(f"{number:02x}" + "2" * 62, entry)


def fill() -> None:
    put(1, "fill_ones", target="x86_64-znver4")
    put(2, "fill_twos", target="x86_64-skylake")
    put(3, "make.<locals>.step", kind="device", target="sm_90a")


def table(text: str) -> list[list[str]]:
    """Return the cells of a printed table, which has two spaces between columns."""
    lines = [line for line in text.splitlines() if "  " in line and not line.startswith("---")]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_list_shows_each_kernel(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    assert main(["cache", "list"]) == 0
    out = capsys.readouterr().out
    head, *rows = table(out)
    assert head == ["kernel", "signature", "kind", "target", "size", "age", "used"]
    assert [row[:4] for row in rows] == [
        ["fill_ones", "int64", "other", "x86_64-znver4"],
        ["fill_twos", "int64", "other", "x86_64-skylake"],
        ["make.<locals>.step", "int64", "device", "sm_90a"],
    ]
    assert all(row[4].startswith("2.") and row[4].endswith(" KiB") for row in rows)
    assert all(row[5].endswith(" d") for row in rows)  # of 1970
    assert out.splitlines()[-1].startswith("3 kernels, ")
    assert str(root) in out


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--kernel", "fill_ones"], ["fill_ones"]),
        (["--kernel", "step"], ["make.<locals>.step"]),
        (["--kernel", "fill_*"], ["fill_ones", "fill_twos"]),
        (["--kernel", "fill_ones", "step"], ["fill_ones", "make.<locals>.step"]),
        (["--kernel", "fill_ones", "--kernel", "step"], ["fill_ones", "make.<locals>.step"]),
        (["--target", "znver4"], ["fill_ones"]),
        (["--target", "sm_*", "x86_64-skylake"], ["fill_twos", "make.<locals>.step"]),
        (["--kernel", "fill_*", "--target", "sm_90a"], []),
    ],
)
def test_kernels_and_targets_choose_entries(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], names: list[str]
) -> None:
    fill()
    assert main(["cache", "list", *words]) == 0
    assert [row[0] for row in table(capsys.readouterr().out)[1:]] == names


def test_names_of_files_cannot_control_the_terminal(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(1, "a\x1b[2Jb\nc\r", target="\x07")
    assert main(["cache", "list"]) == 0
    assert main(["cache", "clear"]) == 0
    out = capsys.readouterr().out
    assert "a?[2Jb?c?" in out
    assert not set(out) & set("\x1b\r\x07")


def test_names_of_kernels_that_the_output_cannot_encode(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(1, "größe")
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["cache", "list"]) == 0
        out.flush()
        assert b"gr\\xf6\\xdfe" in out.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_terminal_gets_short_signatures(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("other", "kernel", "array(float64, 1d, C), " * 20, "any", sections={})
    CodeStore("other").put("3" * 64, entry)
    assert main(["cache", "list"]) == 0
    assert entry.signature.strip() in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) == 90
    assert "..." in lines[2]


def test_size_adds_up_the_kinds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    damaged = root / "other" / "04" / ("04" + "2" * 62 + ".nbrtc")
    damaged.parent.mkdir(mode=0o700)
    damaged.write_bytes(bytes(3 * 1024))
    assert main(["cache", "size"]) == 0
    out = capsys.readouterr().out
    assert [row[:3] for row in table(out)[1:]] == [
        ["device", "sm_90a", "1"],
        ["other", "x86_64-skylake", "1"],
        ["other", "x86_64-znver4", "1"],
    ]
    assert "3.0 KiB of it in damaged" in out
    assert "limit is 512.0 MiB" in out
    assert nbrt.cache.size() == sum(p.stat().st_size for p in root.rglob("*") if p.is_file())


def test_clear_deletes_the_chosen_or_all(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    (root / "notes.txt").write_text("of the user")
    assert main(["cache", "clear", "--kernel", "fill_ones"]) == 0
    assert "deleted 1 kernel, " in capsys.readouterr().out
    assert [each.entry.name for each in nbrt.cache.entries()] == ["fill_twos", "make.<locals>.step"]
    assert main(["cache", "clear"]) == 0
    assert "deleted 2 kernels, " in capsys.readouterr().out
    assert nbrt.cache.entries() == ()
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["notes.txt"]
    assert main(["cache", "clear"]) == 0
    assert "deleted 0 kernels, 0 B" in capsys.readouterr().out


def test_an_empty_cache_is_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("list", "size"):
        assert main(["cache", action]) == 0
    out = capsys.readouterr().out
    assert "0 kernels, 0 B in" in out
    assert not root.exists()


def test_bundles_and_their_errors_on_the_command_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "k.nbrt")
    assert main(["cache", "bundle", path]) == 1
    assert "expected compiled kernels" in capsys.readouterr().err
    fill()
    assert main(["cache", "bundle", path, "--kernel", "fill_*"]) == 0
    assert "wrote 2 kernels, " in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert main(["cache", "load", path]) == 1
    assert "this machine (no target)" in capsys.readouterr().err
    assert nbrt.cache.entries() == ()
    assert main(["cache", "load", path, "--target", "znver4"]) == 0
    out = capsys.readouterr().out
    assert [[row[0], row[-1]] for row in table(out)[1:]] == [
        ["fill_ones", "loaded"],
        ["fill_twos", "skipped"],
    ]
    assert "loaded 1 of 2 kernels" in out
    assert main(["cache", "load", path, "--target", "*"]) == 0
    assert "loaded 1 of 2 kernels" in capsys.readouterr().out
    assert main(["cache", "bundle", str(tmp_path / "no" / "folder.nbrt")]) == 1
    assert "file that can be written" in capsys.readouterr().err
    assert main(["cache", "load", __file__]) == 1
    assert "damaged or none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["cache"])


def _kernel(factor: float) -> Any:
    def scale(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= factor

    return scale


def _launch(kernel: Any) -> list[float]:
    x = np.arange(4.0)
    CpuProgram(kernel).plan(0, (1, 1, 1), (4, 1, 1))(x)
    return x.tolist()


def test_a_loaded_bundle_saves_the_compilation(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in (2.0, 3.0):
        _launch(_kernel(factor))
    path = tmp_path / "scale.nbrt"
    assert len(nbrt.cache.bundle(path, kernels=["scale"])) == 2
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert {row["versions"]["numpy"] for row in manifest["entries"]} == {np.__version__}

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(ThreadDispatcher, "result", refuse)
    with override(cache_dir=str(tmp_path / "other")):
        with pytest.raises(CompileError, match="compiled"):
            _launch(_kernel(2.0))
        loaded = nbrt.cache.load(path)
        assert [each.status for each in loaded] == ["loaded", "loaded"]
        assert _launch(_kernel(3.0)) == [0.0, 3.0, 6.0, 9.0]
        assert _launch(_kernel(2.0)) == [0.0, 2.0, 4.0, 6.0]


def test_code_of_other_compilers_is_neither_bundled_nor_loaded(root: Path, tmp_path: Path) -> None:
    _launch(_kernel(2.0))
    path = tmp_path / "scale.nbrt"
    (stored,) = nbrt.cache.entries()
    entry = CodeStore("cpu").get(stored.key)
    assert entry is not None
    nbrt.cache.bundle(path)
    older = Entry(
        **{
            **{name: getattr(entry, name) for name in Entry.__dataclass_fields__},
            "versions": {**entry.versions, "numba": "0.1"},
        }
    )
    CodeStore("cpu").put(stored.key, older)
    with pytest.raises(ArgumentError, match="none but 1 of other versions"):
        nbrt.cache.bundle(path)
    write_bundle(path, nbrt.cache.entries())
    nbrt.cache.clear()
    with pytest.raises(BundleError, match=r"numba 0\.1 \(here "):
        nbrt.cache.load(path)
    assert nbrt.cache.entries() == ()


def test_filters_are_sequences() -> None:
    with pytest.raises(ArgumentTypeError, match="sequence of str for kernels"):
        nbrt.cache.entries(kernels="step")
    with pytest.raises(ArgumentTypeError, match="sequence of str for targets"):
        nbrt.cache.load("file", targets="sm_80")
    with pytest.raises(ArgumentTypeError, match="path of a file, got 3"):
        nbrt.cache.load(3)  # type: ignore[arg-type]


def test_the_command_reads_the_environment(tmp_path: Path) -> None:
    environment = {
        **environment_of_users(),
        "NBRT_CACHE_DIR": str(tmp_path / "empty"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nbrt.cli.main", "cache", "size"],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=True,
        env=environment,
    )
    assert str(tmp_path / "empty") in done.stdout
    assert done.stderr == ""
