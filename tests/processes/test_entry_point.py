"""An installed distribution adds a kind of device by its entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a distribution as pip leaves it: a package and its dist-info."""
    info = tmp_path / "acme_devices-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-devices\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[nbrt.backends]\n"
        "acme = acme_devices:Interface\n"
        "broken = acme_devices:does_not_exist\n"
        "lazy = acme_missing_module:Interface\n"
        "cpu = acme_devices:Interface\n"
    )
    (tmp_path / "acme_devices.py").write_text(
        "from helpers.sample_backend import SampleInterface\n"
        "print('acme is loaded')\n"
        "class Interface(SampleInterface):\n"
        "    def __init__(self):\n"
        "        super().__init__('acme')\n"
    )
    return tmp_path


def test_an_entry_point_is_a_kind_of_device(site: Path) -> None:
    code = """
        import nbrt

        print(nbrt.known_backends())
        print(type(nbrt.get_interface_for_device("cpu")).__name__)
        print("used")
        with nbrt.device("acme:1"):
            x = nbrt.full(3, 2.0)
            print(nbrt.device_of(x), x.tolist(), nbrt.memory_allocated())
    """
    assert output_of(code, path=(site,)) == (
        "('acme', 'broken', 'cpu', 'cuda', 'lazy')\nCpuInterface\nused\nacme is loaded\n"
        "acme:1 [2.0, 2.0, 2.0] 64\n"
    )


def test_an_entry_point_that_does_not_load_says_why(site: Path) -> None:
    code = """
        import nbrt
        from nbrt.errors import BackendUnavailableError

        for kind in ("broken", "lazy"):
            for _ in range(2):
                try:
                    nbrt.empty(3, device=kind)
                except BackendUnavailableError as error:
                    print(error)
        try:
            nbrt.get_interface_for_device("acm")
        except nbrt.errors.UnknownDeviceError as error:
            print(error)
    """
    text = output_of(code, path=(site,))
    assert text.count("expected the backend 'broken' to load, got AttributeError") == 3
    assert text.count("expected the backend 'lazy' to load, got ModuleNotFoundError") == 3
    assert "did you mean 'acme'?" in text
    assert "  broken is unavailable: " in text
