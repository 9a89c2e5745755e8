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

LAZY_ROOMS = (nbrt.distributed, nbrt.memory)


def declared_to_type_checkers(module: types.ModuleType) -> dict[str, tuple[str, str]]:
    """Return name -> (module, attribute) of the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    found: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    found[alias.asname or alias.name] = (str(statement.module), alias.name)
    return found


def public_modules() -> list[types.ModuleType]:
    """Return every module of nbrt."""
    found = [info.name for info in pkgutil.walk_packages(nbrt.__path__, "nbrt.")]
    names = [name for name in found if not name.endswith("__main__")]
    return [nbrt, *map(importlib.import_module, names)]


def test_all_is_sorted_and_without_repetition() -> None:
    assert nbrt.__all__ == sorted(set(nbrt.__all__))
    assert dir(nbrt) == nbrt.__all__


def test_run_time_and_type_checkers_agree() -> None:
    declared = declared_to_type_checkers(nbrt)
    assert declared == nbrt._HOME_OF
    assert set(declared) | {"__version__"} == set(nbrt.__all__)


@pytest.mark.parametrize("room", LAZY_ROOMS, ids=lambda room: room.__name__)
def test_lazy_rooms_agree_with_type_checkers_as_well(room: types.ModuleType) -> None:
    declared = declared_to_type_checkers(room)
    homes = {
        name: module.removeprefix(f"{room.__name__}.") for name, (module, _) in declared.items()
    }
    assert homes == {name: home.removeprefix(".") for name, home in room._HOME_OF.items()}
    assert set(declared) == set(room.__all__)
    assert dir(room) == sorted(room.__all__)
    for name in room.__all__:
        assert getattr(room, name) is not None
    with pytest.raises(AttributeError, match=f"module '{room.__name__}' has no attribute 'none'"):
        _ = room.none


@pytest.mark.parametrize("name", nbrt.__all__)
def test_every_name_can_be_had_and_is_documented(name: str) -> None:
    value = getattr(nbrt, name)
    if name == "__version__":
        assert isinstance(value, str)
        return
    assert inspect.getdoc(value), f"nbrt.{name} has no docstring"
    module, attribute = nbrt._HOME_OF[name]
    if not isinstance(value, types.ModuleType):
        assert value is getattr(importlib.import_module(module), attribute)
        assert attribute in importlib.import_module(module).__all__


def test_star_import_gives_all() -> None:
    namespace: dict[str, object] = {}
    exec("from nbrt import *", namespace)
    assert set(nbrt.__all__) <= set(namespace)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'nbrt' has no attribute 'no_such_name'"):
        _ = nbrt.no_such_name


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
