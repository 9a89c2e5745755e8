"""Writes the page; see the package's docstring."""

from __future__ import annotations

import numpy as np

from tests.conformance.numpy_generator.report import PAGE, collected, page


def main() -> None:
    tests = collected()
    PAGE.write_text(page(np.__version__, tests), encoding="utf-8")
    print(f"{len(tests)} tests in {PAGE}")


if __name__ == "__main__":
    main()
