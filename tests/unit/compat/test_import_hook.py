"""The import hook of the drop-in, on a package in the place of numba-cuda."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

import pytest

from nbrt.compat.numba_cuda import import_hook
from nbrt.compat.numba_cuda.import_hook import ImportHook, add_import_hook
from nbrt.compat.numba_cuda.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

NAMES = ("hooked", "hooked.cuda", "hooked.cuda.inner", "hooked.cuda.stubs")


class AsksAllFinders:
    """A finder like numba-cuda's, which asks all finders for the name that it is asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "hooked.cuda":
            return None
        others = [finder for finder in sys.meta_path if not isinstance(finder, AsksAllFinders)]
        specs = (finder.find_spec(name, path, target) for finder in others)
        return next(filter(None, specs), None)


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The states of the module when the hook installed; an exception there is raised."""
    package = tmp_path / "hooked" / "cuda"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "import os\n"
        "simulated = 'NUMBA_ENABLE_CUDASIM' in os.environ\n"
        "class shared:\n"
        "    array = 'the function'\n"
    )
    (package / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [AsksAllFinders(), *sys.meta_path])
    monkeypatch.setattr(import_hook, "_NUMBA_CUDA", "hooked.cuda")
    monkeypatch.setitem(import_hook._SUCCESSOR_MODULES, "cuda", "hooked.cuda")
    monkeypatch.setenv("NBRT_NUMBA_CUDA", "")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    found: list[object] = []

    def install() -> None:
        found.append(sys.modules["hooked.cuda"].simulated)
        if "refuse" in found:
            raise RuntimeError("refused")

    patches = Patches()
    add_import_hook(patches, ImportHook(install, lambda: "real successor" not in found))
    yield found
    patches.undo()
    for name in NAMES:
        sys.modules.pop(name, None)
    assert not any(isinstance(finder, ImportHook) for finder in sys.meta_path)
    assert (os.environ["NBRT_NUMBA_CUDA"], os.environ["NUMBA_ENABLE_CUDASIM"]) == ("", "1")
    assert not [name for name in sys.modules if name.startswith("numba_cuda_mlir")]


def test_the_first_import_installs_once_the_module_is_complete(installs: list[object]) -> None:
    assert os.environ["NBRT_NUMBA_CUDA"] == "1"
    assert importlib.util.find_spec("hooked.cuda") is not None
    assert installs == []

    module = importlib.import_module("hooked.cuda.inner")
    assert (module.value, installs) == (1, [False])

    package = sys.modules["hooked.cuda"]
    plain = PathFinder.find_spec("hooked.cuda", sys.modules["hooked"].__path__)
    assert plain is not None
    assert type(package.__loader__) is type(plain.loader)
    assert package.__spec__ == plain


def test_the_import_fails_if_the_installation_fails(installs: list[object]) -> None:
    installs.append("refuse")
    with pytest.raises(RuntimeError, match="refused"):
        importlib.import_module("hooked.cuda")
    assert "hooked.cuda" not in sys.modules


def test_other_imports_are_those_of_other_finders(installs: list[object]) -> None:
    importlib.import_module("hooked")
    assert importlib.util.find_spec("hooked.missing") is None
    assert installs == []


def test_the_successor_has_the_modules_of_numba_cuda(installs: list[object]) -> None:
    successor = importlib.import_module("numba_cuda_mlir")
    assert installs == [False]
    assert successor.cuda is sys.modules["hooked.cuda"]
    inner = importlib.import_module("numba_cuda_mlir.cuda.inner")
    assert inner is sys.modules["hooked.cuda.inner"]
    shared = importlib.import_module("numba_cuda_mlir.cuda.shared")
    assert shared is successor.cuda.shared
    with pytest.raises(ModuleNotFoundError, match=r"no equivalent of numba_cuda_mlir\.cuda\.other"):
        importlib.import_module("numba_cuda_mlir.cuda.other")
    with pytest.raises(ModuleNotFoundError, match=r"no equivalent of numba_cuda_mlir\.lowering"):
        importlib.import_module("numba_cuda_mlir.lowering")


def test_a_real_successor_is_left_alone(installs: list[object]) -> None:
    installs.append("real successor")
    assert importlib.util.find_spec("numba_cuda_mlir") is None  # it is not installed here


def test_an_imported_successor_is_there_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = {name: object() for name in ("numba_cuda_mlir", "numba_cuda_mlir.cuda")}
    for name, module in real.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    patches = Patches()
    add_import_hook(patches, ImportHook(lambda: None, lambda: True))
    assert not real.keys() & sys.modules.keys()
    patches.undo()
    assert real.items() <= sys.modules.items()
