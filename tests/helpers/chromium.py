"""Open a page in headless Chromium, send mouse and key events, and read its content.

The browser is Qt's WebEngine: Chromium in a wheel, which pip installs and which needs no display.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["BrowserMissingError", "browse"]

_CHILD = Path(__file__).with_name("chromium_child.py")
_CANNOT_START = 42
_HANG_TIMEOUT_S = 400
_DARK = "--blink-settings=preferredColorScheme=0"
_ENVIRONMENT = {
    "QT_QPA_PLATFORM": "offscreen",
    # The page is ours; Chromium's sandbox refuses to run as root and in many containers.
    "QTWEBENGINE_DISABLE_SANDBOX": "1",
    "QT_LOGGING_RULES": "*=false",
}


class BrowserMissingError(Exception):
    """There is no browser here; the message says why."""


def browse(
    page: Path, *steps: tuple[str, Any], dark: bool = False, size: tuple[int, int] = (1200, 900)
) -> dict[str, Any]:
    """Open a page, take the steps, and return their ``results`` and the page's ``console``.

    Steps: ``("js", expression)`` gives its value; ``("until", expression)`` waits for it to be
    true, and gives it; ``("move", (selector, across, down))`` and ``("click", ...)`` use the mouse,
    at parts of the width and height of an element; ``("key", "Right")`` a key; ``("shot",
    (path, colors))`` saves what is seen, once all of these colors are.
    """
    job = {"page": str(page), "steps": steps, "size": size}
    flags = {"QTWEBENGINE_CHROMIUM_FLAGS": f"--disable-gpu {_DARK if dark else ''}"}
    child = subprocess.run(
        [sys.executable, str(_CHILD)], input=json.dumps(job), capture_output=True, text=True,
        env=os.environ | _ENVIRONMENT | flags, timeout=_HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    if child.returncode == _CANNOT_START:
        raise BrowserMissingError(child.stdout.strip())
    if child.returncode:
        raise AssertionError(f"the browser failed: {child.stdout}\n{child.stderr}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found
