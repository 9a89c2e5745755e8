"""The facade: explicit, complete, documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import types
from pathlib import Path

import pytest

import nbrt
from nbrt._lazy_exports import lazy_exports

FACADES = (nbrt, nbrt.distributed, nbrt.memory, nbrt.random)


def declared_to_type_checkers(module: types.ModuleType) -> dict[str, tuple[str, str]]:
    """Return name -> (module, attribute) of the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    declared: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    # PEP 484: only ``import name as name`` exports.
                    assert alias.asname == alias.name
                    declared[alias.name] = (str(statement.module), alias.name)
    return declared


def public_modules() -> list[types.ModuleType]:
    """Return every module of nbrt."""
    found = [info.name for info in pkgutil.walk_packages(nbrt.__path__, "nbrt.")]
    names = [name for name in found if not name.endswith("__main__")]
    return [nbrt, *map(importlib.import_module, names)]


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_facades_export_at_run_time_what_type_checkers_see(facade: types.ModuleType) -> None:
    declared = declared_to_type_checkers(facade)
    assert facade.__all__ == dir(facade) == sorted(declared)
    for name, (module, attribute) in declared.items():
        value = getattr(facade, name)
        if isinstance(value, types.ModuleType):
            assert value.__name__ == f"{module}.{attribute}"
        else:
            assert value is getattr(importlib.import_module(module), attribute)
    with pytest.raises(AttributeError, match=f"module '{facade.__name__}' has no attribute 'none'"):
        _ = facade.none


def test_lazy_exports_need_the_source_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbrt.memory.__spec__, "loader", None)
    with pytest.raises(ImportError, match=r"expected the source file of nbrt\.memory"):
        lazy_exports("nbrt.memory")


@pytest.mark.parametrize("name", nbrt.__all__)
def test_every_name_can_be_had_and_is_documented(name: str) -> None:
    value = getattr(nbrt, name)
    if name == "__version__":
        assert isinstance(value, str)
        return
    assert inspect.getdoc(value), f"nbrt.{name} has no docstring"
    module, attribute = declared_to_type_checkers(nbrt)[name]
    if not isinstance(value, types.ModuleType):
        assert attribute in importlib.import_module(module).__all__


def test_star_import_gives_all() -> None:
    namespace: dict[str, object] = {}
    exec("from nbrt import *", namespace)
    assert set(nbrt.__all__) <= set(namespace)


@pytest.mark.parametrize("module", public_modules(), ids=lambda module: module.__name__)
def test_modules_say_what_they_offer(module: types.ModuleType) -> None:
    if not getattr(module, "__all__", None):
        assert module.__doc__ is not None or not Path(str(module.__file__)).read_text().strip()
        return
    assert module.__doc__, f"{module.__name__} has no docstring"
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), f"{module.__name__}.__all__ names {name}, which is missing"


@pytest.mark.parametrize(
    "kind",
    [value for name in nbrt.__all__ if inspect.isclass(value := getattr(nbrt, name))],
    ids=lambda kind: kind.__name__,
)
def test_public_methods_are_documented(kind: type) -> None:
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", member)
        if not name.startswith("_") and callable(function) and not inspect.isclass(function):
            assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name}"
