"""The browser process of `helpers.chromium`: reads a job from stdin, writes results to stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

try:
    from PySide6.QtCore import QPoint, Qt, QTimer, QUrl
    from PySide6.QtGui import QImage
    from PySide6.QtTest import QTest
    from PySide6.QtWebEngineCore import QWebEnginePage
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication
except ImportError as missing:
    print(f"no Chromium: {missing}")
    sys.exit(42)

HANG_TIMEOUT_S = 300
PLACE = """((selector, across, down) => {{
  const element = document.querySelector(selector);
  element.scrollIntoView({{block: 'nearest', behavior: 'instant'}});
  const box = element.getBoundingClientRect();
  return [box.left + across * box.width, box.top + down * box.height];
}})(...{})"""


class Page(QWebEnginePage):
    """A page that keeps what is written to its console."""

    def __init__(self, view: QWebEngineView) -> None:
        super().__init__(view)
        self.console: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
        self.console.append(f"{level.name} line {line}: {message}")


class Visit:
    """Takes one step after the other, each from Qt's event loop."""

    def __init__(self, steps: list[Any], size: tuple[int, int]) -> None:
        self.steps = steps
        self.results: list[Any] = []
        self.view = QWebEngineView()
        self.page = Page(self.view)
        self.view.setPage(self.page)
        self.view.resize(*size)
        self.view.show()
        self.page.loadFinished.connect(self.take_next)

    def take_next(self) -> None:
        if not self.steps:
            QApplication.quit()
            return
        kind, value = self.steps[0]
        if kind == "shot":
            self.shoot(*value)
        elif kind == "key":
            QTest.keyClick(self.view.focusProxy(), getattr(Qt.Key, f"Key_{value}"))
            self.done(None)
        else:
            wanted = PLACE.format(json.dumps(value)) if kind in {"move", "click"} else value
            self.page.runJavaScript(f"JSON.stringify({wanted})", self.answered)

    def shoot(self, path: str, colors: list[str]) -> None:
        image = self.view.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
        seen = {f"#{pixel & 0xFFFFFF:06x}" for pixel in set(image.constBits().cast("I"))}
        if not seen.issuperset(colors):  # not painted yet, or not all of it
            QTimer.singleShot(10, self.take_next)
            return
        assert image.save(path)
        self.done(None)

    def answered(self, text: str | None) -> None:
        kind, _ = self.steps[0]
        value = json.loads(text) if text else None
        if kind == "until" and not value:
            QTimer.singleShot(10, self.take_next)
            return
        if kind == "move":
            QTest.mouseMove(self.view.focusProxy(), QPoint(*map(int, value)))
        elif kind == "click":
            place = QPoint(*map(int, value))
            QTest.mouseClick(self.view.focusProxy(), Qt.MouseButton.LeftButton, pos=place)
        self.done(value)

    def done(self, value: Any) -> None:
        self.steps.pop(0)
        self.results.append(value)
        QTimer.singleShot(0, self.take_next)

    def give_up(self) -> None:
        print(f"waited {HANG_TIMEOUT_S} s for {self.steps[:1]}; console: {self.page.console}")
        QApplication.exit(1)


def main() -> None:
    job = json.load(sys.stdin)
    app = QApplication([])
    visit = Visit(job["steps"], job["size"])
    QTimer.singleShot(1000 * HANG_TIMEOUT_S, visit.give_up)
    visit.page.load(QUrl.fromLocalFile(job["page"]))
    code = app.exec()
    if code == 0:
        print(json.dumps({"results": visit.results, "console": visit.page.console}))
    sys.stdout.flush()
    os._exit(code)  # tearing down Chromium takes longer than the visit


if __name__ == "__main__":
    main()
