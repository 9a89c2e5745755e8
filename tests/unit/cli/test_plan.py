"""``nbrt plan``."""

from __future__ import annotations

import json
import pickle
import sys
from typing import TYPE_CHECKING

import pytest

import nbrt
from nbrt.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import sys

import nbrt

assert __name__ == "__main__"


def step(size):
    return nbrt.zeros(size, "uint8")


x = [step(int(size)) for size in sys.argv[1:]]
print("ran with", sys.argv[1:], nbrt.device_count("cuda"))
if "1" in sys.argv:
    float(nbrt.to_host(x[0])[0])
if "2" in sys.argv:
    sys.exit(7)
if "3" in sys.argv:
    sys.exit("a text")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_is_planned(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.argv, list(sys.path)
    status = main(["plan", "--gpu", "L4", "--devices", "3", script, "1073741824"])
    out = capsys.readouterr().out
    assert status == 0
    assert "ran with ['1073741824'] 3\n" in out
    assert "plan for 3 x L4 (" in out
    assert "peak allocated 1.0 GiB on cuda:0 at train.py:9 step" in out
    assert (sys.argv, sys.path) == before


def test_options_behind_the_script_are_its_own(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", script, "--", "8", "16"]) == 0
    assert main(["plan", script, "8", "16"]) == 0
    assert capsys.readouterr().out.count("ran with ['8', '16'] 1\n") == 2


def test_files(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, text, snapshot = (tmp_path / name for name in ("p.html", "p.json", "p.pickle"))
    options = ["--html", str(html), "--json", str(text), "--snapshot", str(snapshot)]
    assert main(["plan", *options, script, "4096"]) == 0
    capsys.readouterr()
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(text.read_text())["peak"] == 4096
    assert nbrt.MemoryPlan.from_json(text.read_text()).peak == 4096
    assert nbrt.memory.load_snapshot(snapshot) == pickle.loads(snapshot.read_bytes())


def test_fits_prints_all_gpus_and_sets_the_status(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--fits", "--gpu", "H100", script, str(30 << 30)]) == 0
    out = capsys.readouterr().out
    assert "RTX 4090" in out
    assert main(["plan", "--fits", "--gpu", "L4", script, str(30 << 30)]) == 3


def test_a_failed_script_shows_its_lines_and_the_plan(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", script, "1"]) == 1
    out, error = capsys.readouterr()
    lines = error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{script}", line 15, in <module>'
    assert "FakeReadError" in lines[-1]
    assert "peak allocated" in out
    assert "The script ended with status 1: the plan covers the part that ran." in out
    assert main(["plan", "--reads", "zeros", script, "1"]) == 0


@pytest.mark.parametrize(("argument", "status"), [("2", 7), ("3", 1)])
def test_the_exit_status_is_that_of_the_script(
    script: str, argument: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", script, argument]) == status
    out, error = capsys.readouterr()
    assert f"ended with status {status}" in out
    assert error == ("a text\n" if argument == "3" else "")


def test_wrong_arguments(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "missing.py"]) == 1
    assert main(["plan", "--gpu", "no GPU", script]) == 1
    error = capsys.readouterr().err
    assert "nbrt: expected a script to run, got missing.py" in error
    assert "nbrt: expected a GPU" in error
    assert "got 'no GPU'" in error


def test_a_missing_script_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan"])
    assert capsys.readouterr().err.rstrip().endswith("required: script")


@pytest.mark.parametrize("option", ["--html", "--json", "--snapshot"])
def test_files_are_checked_before_the_run(
    option: str, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "missing" / "x", tmp_path):
        assert main(["plan", option, str(path), script, "5"]) == 1
        found = capsys.readouterr()
        assert "ran with" not in found.out
        assert f"expected a file to write for {option}" in found.err


def test_files_are_relative_to_the_folder_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "moves.py").write_text("import os; os.chdir('other')")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--json", "plan.json", "moves.py"]) == 0
    assert (tmp_path / "plan.json").is_file()
