"""The documentation site builds without a warning and has the reference of every public module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ["nbrt", "nbrt.errors", "nbrt.backends.interface", "nbrt_kernels"]


def test_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    completed = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    for page in ["", "install", "guide", "design", "gpu_status", "changelog"]:
        assert (tmp_path / page / "index.html").is_file()
    for module in REFERENCE:
        text = (tmp_path / "reference" / module / "index.html").read_text(encoding="utf-8")
        assert 'class="doc doc-object' in text, f"the page of {module} documents nothing"
